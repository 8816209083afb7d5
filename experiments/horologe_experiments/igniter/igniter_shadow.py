"""iGniter Fig. 15 to 17: GSLICE+ adjusts shares by measurements and oscillates; a shadow repairs an error at once."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from horologe_common.clock import ms, s
from horologe_experiments.harness.experiment import Bar, Findings, load_scene
from horologe_experiments.harness.interval_ledger import IntervalLedger
from horologe_experiments.igniter.gslice_tuner import GsliceTuner
from horologe_experiments.igniter.igniter_run import IN_TIME, INTERFERENCE, requests
from horologe_experiments.igniter.paper_provisioning import provision_as_paper
from horologe_experiments.igniter.shared_models import EmulatedHardware
from horologe_experiments.igniter.sharing_world import TUNER, SharingWorld
from horologe_experiments.igniter.table3 import PAPER_V100, TABLE_3, V100
from horologe_planning.provisioning.device_shares import shares_by_device, with_shares
from horologe_planning.provisioning.provisioner import provision
from horologe_planning.provisioning.workloads import BATCH_LIMIT, ProvisioningOptions
from horologe_sim.controller_only.controller_world import ClusterSettings
from horologe_tuner.core.tuner import Tuner
from horologe_tuner.settings import TunerSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from matplotlib.figure import Figure

    from horologe_experiments.harness.experiment import Progress
    from horologe_experiments.igniter.sharing_world import TunerCore
    from horologe_planning.plan import Plan
    from horologe_planning.provisioning.workloads import Workload
    from horologe_planning.report import SharedPlans

INTERVAL_NS = ms(100)
SECOND = 10
"""Intervals."""
ERROR_NS, CALM_NS, PERIOD_NS = s(2), s(1), s(6.13)
"""An error lasts 2 s of every 6.13 s, so that errors begin at different times of a second. The workload switches back
about 2 s after the end, and waits no longer the next time, because the next error comes more than 2 s later."""
START_NS = s(10)
"""Start of a process (iGniter section 5.3)."""


OUR_OPTIONS = ProvisioningOptions(margin=1.0)
"""As in igniter-run: the plan holds without the error."""


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scene file of igniter-shadow."""

    description: str
    pair: tuple[str, ...]
    seconds: int
    neighbours: tuple[str, ...]
    error: float
    switches: int
    cluster: ClusterSettings


class IgniterShadow:
    """Violations and adjustments under GSLICE+ and iGniter, and switches to shadows."""

    name = "igniter-shadow"
    title = "iGniter Fig. 15 to 17: GSLICE+ oscillates, shadows repair errors of the prediction"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`."""
        scene = load_scene(self.name, Scene, quick, changes)
        pair = _plans_of(provision_as_paper(_workloads(scene.pair), PAPER_V100))
        gslice = GsliceTuner(V100)
        rows, series = [], {}
        tuners: dict[str, TunerCore] = {"gslice+": gslice, "igniter": _tuner()}
        for step, (name, tuner) in enumerate(tuners.items()):
            progress(0.3 * step, name)
            world = _world(scene, with_largest_batch(pair) if tuner is gslice else pair, tuner, seed, scene.seconds)
            world.run(s(scene.seconds))
            world.check()
            rows += [_serving_row(name, world, workload, gslice, scene) for workload in scene.pair]
            series[name] = _series(world, scene.pair, gslice if tuner is gslice else None, scene)
        progress(0.6, "switches")
        row, series["shadow"] = self._switches(scene, seed)
        facts = {
            "Fig. 15, 16": f"{' and '.join(scene.pair)} on one V100; a new process starts in {START_NS / 1e9:g} s",
            "Fig. 17": f"{', '.join(scene.neighbours)} on one V100; the first takes {scene.error:g} times as long for "
            f"{ERROR_NS / 1e9:g} s of every {PERIOD_NS / 1e9:g} s; the tuner switches back after {CALM_NS / 1e9:g} s",
            "repaired": "from the begin of the error until the P99 of the requests sent is within the SLO, to its end",
        }
        rows.append(row)
        bars = [
            Bar("switches", row["adjustments"], scene.switches),
            Bar("requests lost", row["lost"], 0, "at most"),
            Bar("longest violation, s", row["repaired_s"], 1.5, "at most"),
            Bar("reversals of GSLICE+", _most(rows, "gslice+", "reversals"), 1),
            Bar("violated seconds under iGniter", _most(rows, "igniter", "violated_s"), 0, "at most"),
        ]
        return Findings(self.name, self.title, seed, quick, facts, rows, bars, series)

    def _switches(self, scene: Scene, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the row and the series of errors that come and go. Each causes a switch there and one back."""
        periods = scene.switches // 2
        seconds = round(periods * PERIOD_NS / 1e9) + 3
        victim = scene.neighbours[0]
        core = _tuner(shadow_calm_ns=CALM_NS)
        world = _world(
            scene,
            _plans_of(provision(_workloads(scene.neighbours), [V100], OUR_OPTIONS)),
            core,
            seed,
            seconds,
            noise=False,
        )
        begins = [s(1) + period * PERIOD_NS for period in range(periods)]
        for begin_ns in begins:
            for at_ns, factor in ((begin_ns, scene.error), (begin_ns + ERROR_NS, 1.0)):
                world.schedule(world.begin_ns + at_ns, _change_times, (world, victim, factor))
        world.run(s(seconds))
        world.check()
        repaired = [_repaired_ns(world, victim, begin_ns) / 1e9 for begin_ns in begins]
        switches = [entry for entry in world.journal if entry.event in ("switched up", "switched back")]
        row = _row("shadow", world, victim, len(switches), len(switches), scene)
        row["repaired_s"] = max(repaired)
        at_s = [round((entry.at_ns - world.begin_ns) / 1e9, 3) for entry in switches]
        latency = [_p99_ms(panel.lines[_group(world, victim)]) for panel in world.ledger.panels]
        return row, {"switches_s": at_s[:4], "p99_ms": latency[: 8 * SECOND], "repaired_s": repaired}

    def draw(self, findings: Findings) -> Figure:
        """See `Experiment`."""
        from horologe_experiments.harness.plots import make_figure

        figure, (left, middle, right) = make_figure(1, 3)
        for name in ("gslice+", "igniter"):
            for workload, one in findings.series[name].items():
                left.plot(one["beyond"], label=f"{workload}, {name}", lw=1)
                middle.step([at for at, *_ in one["shares"]], [p for _, p, _ in one["shares"]], where="post",
                            label=f"{workload}, {name}")  # fmt: skip
        left.set(xlabel="s", ylabel="part of the requests beyond the SLO")
        middle.set(xlabel="s", ylabel="share of the GPU (%)")
        shadow = findings.series["shadow"]
        times = np.arange(len(shadow["p99_ms"])) / SECOND
        right.plot(times, [value if value >= 0 else np.nan for value in shadow["p99_ms"]], ".-", lw=0.8)
        slo_ms = next(w.slo_ms for w in TABLE_3 if w.name == findings.rows[-1]["workload"])
        right.axhline(slo_ms, color="k", ls="--", lw=0.8)
        for at_s in shadow["switches_s"]:
            right.axvline(at_s, color="r", lw=0.8)
        right.set(xlabel="s", ylabel="P99 (ms), lines: switches")
        for panel in (left, middle):
            panel.legend(fontsize=6)
        return figure


def _most(rows: Sequence[Mapping[str, Any]], strategy: str, column: str) -> float:
    return float(max(row[column] for row in rows if row["strategy"] == strategy))


def _change_times(now_ns: int, change: tuple[SharingWorld, str, float]) -> None:
    world, workload, factor = change
    world.set_slowness(workload, factor)


def _tuner(**options: Any) -> Tuner:
    return Tuner(TUNER, TunerSettings(scaler="process"), **options)


def _workloads(names: Sequence[str]) -> list[Workload]:
    return [workload for workload in TABLE_3 if workload.name in names]


def _plans_of(shared: SharedPlans) -> tuple[Plan, ...]:
    """Return the plans, which must be on one GPU. Raises ValueError if they need more than one."""
    if len(shares_by_device(shared.plans)) > 1:
        names = ", ".join(plan.name for plan in shared.plans)
        raise ValueError(f"workloads: got {names}, wanted workloads that fit on one GPU")
    return shared.plans


def with_largest_batch(plans: Sequence[Plan]) -> tuple[Plan, ...]:
    """Return the plans with `BATCH_LIMIT` as the largest batch of every share."""
    shares = (share for shares in shares_by_device(plans).values() for share in shares)
    return with_shares(
        plans,
        (share._replace(placement=msgspec.structs.replace(share.placement, max_batch=BATCH_LIMIT)) for share in shares),
    )


def _world(
    scene: Scene, plans: Sequence[Plan], tuner: TunerCore, seed: int, seconds: int, *, noise: bool = True
) -> SharingWorld:
    """Return a world that serves the workloads of plans on one GPU at constant rates."""
    by_name = {workload.name: workload for workload in TABLE_3}
    workloads = [by_name[plan.name] for plan in plans]
    ledger = IntervalLedger([workload.name for workload in workloads], len(workloads), INTERVAL_NS)
    watch = tuner.record_batch if isinstance(tuner, GsliceTuner) else None
    hardware = EmulatedHardware({V100.gpu.name: V100}, INTERFERENCE, seed if noise else None)
    setting = msgspec.structs.replace(scene.cluster, settle_ns=START_NS + s(1))
    chunks = requests(workloads, "even", s(seconds), seed)
    return SharingWorld(setting, plans, hardware, ledger, seed, tuner, chunks, watch, START_NS)


def _group(world: SharingWorld, workload: str) -> int:
    return world.ledger.groups.index(workload)


def _violations(world: SharingWorld, workload: str, intervals: int) -> list[bool]:
    """Return whether more than 1% of the requests sent in each stretch of some intervals were late or refused."""
    lines = [panel.lines[_group(world, workload)] for panel in world.ledger.panels]
    stretches = [lines[at : at + intervals] for at in range(0, len(lines), intervals)]
    return [sum(line.ok for line in part) < IN_TIME * sum(line.sent for line in part) for part in stretches]


def _repaired_ns(world: SharingWorld, workload: str, begin_ns: int) -> int:
    """Return the time from the begin of an error until the workload is within its SLO.

    From then to the end of the error, at least 99% of the requests sent are answered in time.
    """
    lines = [panel.lines[_group(world, workload)] for panel in world.ledger.panels]
    first, end = begin_ns // INTERVAL_NS, (begin_ns + ERROR_NS) // INTERVAL_NS
    for at in range(first, end):
        if sum(line.ok for line in lines[at:end]) >= IN_TIME * sum(line.sent for line in lines[at:end]):
            return max(0, at * INTERVAL_NS - begin_ns)
    return ERROR_NS


def _p99_ms(line: Any) -> float:
    """Return the P99 of the requests sent in an interval; -1 if more than 1% were refused."""
    rank = 0.99 * line.sent / max(1, line.times.total)
    return line.times.quantile_ms(rank) if rank <= 1 else -1.0


def _serving_row(name: str, world: SharingWorld, workload: str, gslice: GsliceTuner, scene: Scene) -> dict[str, Any]:
    """Return the row of a workload in Fig. 15 and 16."""
    percents = [percent for _, owner, percent, _ in gslice.log if owner == workload] if name == "gslice+" else [0.0]
    steps = np.sign(np.diff(percents))
    reversals = int(sum(a != b for a, b in pairwise(steps[steps != 0])))
    return _row(name, world, workload, len(percents) - 1, reversals, scene)


def _row(
    name: str, world: SharingWorld, workload: str, adjustments: int, reversals: int, scene: Scene
) -> dict[str, Any]:
    line = world.ledger.line(workload)
    return {
        "strategy": name,
        "workload": workload,
        "requests": line.sent,
        "in_time": round(line.satisfaction, 4),
        "violated_s": sum(_violations(world, workload, SECOND)),
        "adjustments": adjustments,
        "reversals": reversals,
        "lost": len(world.open),
        "repaired_s": 0.0,
    }


def _series(
    world: SharingWorld, names: Iterable[str], gslice: GsliceTuner | None, scene: Scene
) -> dict[str, dict[str, Any]]:
    """Return, by workload, the part of requests beyond the SLO in each second, and its shares and batches over time."""
    result = {}
    for name in names:
        lines = [panel.lines[_group(world, name)] for panel in world.ledger.panels]
        beyond = []
        for at in range(0, scene.seconds * SECOND, SECOND):
            sent = sum(line.sent for line in lines[at : at + SECOND])
            beyond.append(round(1 - sum(line.ok for line in lines[at : at + SECOND]) / max(1, sent), 4))
        placement = world.placements[name]
        log = gslice.log if gslice else [(0, name, placement.percent, placement.max_batch)]
        shares = [
            (max(0.0, (at_ns - world.begin_ns) / 1e9), percent, batch)
            for at_ns, owner, percent, batch in log
            if owner == name
        ]
        shares.append((float(scene.seconds), *shares[-1][1:]))
        result[name] = {"beyond": beyond, "shares": shares}
    return result
