"""Plays the same requests under several schedulers, and shows the results side by side with a bound."""

from __future__ import annotations

import math
from array import array
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from horologe_common.wire import Infer
from horologe_controller.settings import ControllerSettings
from horologe_sim.comparison.bound import measured_requests, score_bound
from horologe_sim.comparison.played_load import build_load
from horologe_sim.controller_only.controller_world import ControllerWorld
from horologe_sim.engine.ledger import OK, Ledger
from horologe_sim.report.tables import Table
from horologe_sim.report.tally import quantiles_ms
from horologe_sim.scenario.scenario_checks import check_scheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.wire import Load, Result
    from horologe_sim.comparison.played_load import PlayedLoad
    from horologe_sim.controller_only.direct_device import DirectDevice
    from horologe_sim.scenario.scenario import Scenario

DEFAULT = ControllerSettings().scheduler
COMPARED = (DEFAULT, "clockwork", "orloj", "edf", "nexus", "deferred", "clipper")
"""Schedulers that are compared if none is named. fifo refuses nothing, so it has no place beside them."""
POPULAR = 0.01
"""Least share of the requests of a model that counts for the worst model."""
BLOCKS = 20
"""Parts of the load, equal in time, over which two schedulers are compared."""
CLEARLY, LEAST_AHEAD = 2.0, 0.001
"""A lead is clear from this number of standard errors, and from this share of the requests on."""
MOST_BOUNDED = 200_000
"""Requests up to which the bound is computed: it takes 100 passes over all their possible starts."""


class SchedulerResult(msgspec.Struct, frozen=True):
    """Result of a scheduler. Shares are of the requests with deadlines, after the warm-up."""

    scheduler: str
    attainment: float
    """Share answered in time."""
    of_bound: float | None
    """Attainment over the bound."""
    goodput: float
    """Requests answered in time, per second."""
    utilisation: float
    """Mean share of the time that the devices spent in EXEC."""
    refused: float
    late: float
    """Share answered after the deadline, or never."""
    p50_ms: float
    """Latency of the answers in time."""
    p99_ms: float
    worst_model: str
    worst_attainment: float
    """Of the models with at least `POPULAR` of the requests."""
    ahead: float | None = None
    """Attainment beyond that of the default scheduler. None: the default was not played."""
    ahead_error: float | None = None
    """Standard error of `ahead`, paired over `BLOCKS` parts of the load."""

    @property
    def is_clearly_ahead(self) -> bool:
        """Return whether the lead over the default is more than noise."""
        return self.ahead is not None and self.ahead >= max(LEAST_AHEAD, CLEARLY * (self.ahead_error or 0.0))


class SchedulerComparison(msgspec.Struct, frozen=True):
    """The results of all schedulers. `bound`: no schedule serves more on average; None: not computed."""

    scenario: str
    seed: int
    seconds: float
    devices: int
    requests: int
    bound: float | None
    results: tuple[SchedulerResult, ...]
    notes: tuple[str, ...] = ()
    """Sentences for the user: what is not counted, or not computed."""

    @property
    def verdict(self) -> str:
        """Return what the default serves, and which scheduler serves clearly more, if any."""
        default = next((result for result in self.results if result.scheduler == DEFAULT), None)
        best = max(self.results, key=lambda result: result.attainment)
        shown = default or best
        bound = f", {shown.of_bound:.1%} of what any schedule could serve" if shown.of_bound else ""
        in_time = f"{shown.attainment:.2%} in time{bound}"
        if default is None:
            serves = "serves most," if len(self.results) > 1 else "serves"
            return f"{best.scheduler} {serves} {in_time}; the default was not played"
        text = f"the default ({DEFAULT}) serves {in_time}"
        clear = [result for result in self.results if result.is_clearly_ahead]
        if len(self.results) == 1:
            return text
        if not clear:
            return f"{text}; no scheduler serves clearly more"
        best = max(clear, key=lambda result: result.ahead or 0.0)
        more = f"{best.scheduler} serves {best.ahead:.2%} more (+-{CLEARLY * (best.ahead_error or 0.0):.2%})"
        return f'{text}; {more}: consider controller.scheduler = "{best.scheduler}"'

    def to_json(self) -> str:
        """Return the comparison as indented JSON with a fixed order of keys."""
        document = msgspec.to_builtins(self) | {"verdict": self.verdict}
        return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()

    def table(self) -> str:
        """Return the comparison as plain text."""
        table = Table(("scheduler", "in time", "of bound", "ok/s", "busy", "refused", "late", "p50", "p99 ms", "worst"))
        for row in self.results:
            bound = "-" if row.of_bound is None else f"{row.of_bound:.1%}"
            shares = (f"{share:.1%}" for share in (row.utilisation, row.refused, row.late))
            times = (f"{time_ms:.2f}" for time_ms in (row.p50_ms, row.p99_ms))
            worst = f"{row.worst_model} {row.worst_attainment:.1%}"
            table.add_row(row.scheduler, f"{row.attainment:.2%}", bound, f"{row.goodput:.1f}", *shares, *times, worst)
        title = (
            f"{self.scenario}: {self.requests:,} requests in {self.seconds:g} s on {self.devices} device(s), "
            f"seed {self.seed}"
        )
        bound = "not computed" if self.bound is None else f"{self.bound:.2%}"
        return "\n\n".join((title, table.text(), "\n".join((f"bound: {bound}", *self.notes, self.verdict))))


class ComparedLedger(Ledger):
    """Counts by model, and the latencies of answers in time between `from_ns` and `until_ns`. Best effort is last."""

    def __init__(self, groups: int, from_ns: int, until_ns: int) -> None:
        super().__init__(groups, from_ns)
        self.until_ns = until_ns
        self.times_in_time = array("q")
        self.blocks = np.zeros(BLOCKS, np.int64)
        """Answers in time by the part of the load in which their request was sent."""

    def ended(self, sent_ns: int, group: int, status: str, took_ns: int) -> None:
        """Count the end of a request, and its latency if it was in time."""
        super().ended(sent_ns, group, status, took_ns)
        if status == OK and sent_ns >= self.from_ns and group < len(self.lines) - 1:
            self.times_in_time.append(took_ns)
            block = (sent_ns - self.from_ns) * BLOCKS // max(1, self.until_ns - self.from_ns)
            self.blocks[min(block, BLOCKS - 1)] += 1


class ComparedWorld(ControllerWorld):
    """Adds up the time of EXECs in the measured part of the load."""

    ledger: ComparedLedger
    exec_ns = 0

    def on_action_end(self, device: DirectDevice, action: Infer | Load, result: Result, promised_ns: int) -> None:
        """Count an INFER that has ended."""
        if isinstance(action, Infer):
            end_ns, ledger = result.end_ns - self.begin_ns, self.ledger
            self.exec_ns += max(0, min(end_ns, ledger.until_ns) - max(end_ns - result.device_ns, ledger.from_ns))


def compare_schedulers(
    scenario: Scenario, schedulers: Sequence[str] = (), progress: Callable[[float, str], None] | None = None
) -> SchedulerComparison:
    """Play the scenario under each scheduler, all of `COMPARED` if none is named. Deterministic.

    `progress(done, scheduler)` is called during the runs. Raises SettingsError for an unknown scheduler, or a scenario
    that `ControllerWorld` cannot play.
    """
    for name in schedulers:
        check_scheduler("--scheduler", name)
    load = build_load(scenario)
    notes = list(load.notes)
    bound = None
    if len(load.chunk.times_ns) <= MOST_BOUNDED:
        bound = score_bound(load)
    else:
        notes.append(f"the bound is computed for at most {MOST_BOUNDED:,} requests")
    names = tuple(dict.fromkeys(schedulers or COMPARED))
    worlds = {}
    for number, name in enumerate(names):

        def on_progress(done: float, number: int = number, name: str = name) -> None:
            if progress:
                progress((number + done) / len(names), name)

        worlds[name] = _play(load, name, scenario.seed, on_progress)
    results = [_summarize(load, name, world, bound, worlds.get(DEFAULT)) for name, world in worlds.items()]
    seconds = (load.duration_ns - load.warmup_ns) / 1e9
    return SchedulerComparison(
        scenario.name,
        scenario.seed,
        seconds,
        scenario.workers,
        len(measured_requests(load)),
        None if bound is None else math.ceil(1e5 * bound) / 1e5,
        tuple(results),
        tuple(notes),
    )


def _play(load: PlayedLoad, name: str, seed: int, progress: Callable[[float], None]) -> ComparedWorld:
    controller = load.cluster.controller.with_scheduler(name)
    ledger = ComparedLedger(len(load.models) + 1, load.warmup_ns, load.duration_ns)
    cluster = msgspec.structs.replace(load.cluster, controller=controller)
    world = ComparedWorld(cluster, load.models, ledger, seed, [load.chunk], load.devices)
    world.controller.cluster.distributions.update(load.distributions)
    world.run(load.duration_ns, progress)
    world.check()
    return world


def _compare_blocks(world: ComparedWorld, default: ComparedWorld | None, total: int) -> tuple[float, float] | None:
    """Return by which share of the requests a scheduler is ahead of the default, and the standard error."""
    if default is None:
        return None
    more = (world.ledger.blocks - default.ledger.blocks) / total
    return round(float(more.sum()), 5), round(float(np.sqrt(BLOCKS) * more.std(ddof=1)), 5)


def _summarize(
    load: PlayedLoad, name: str, world: ComparedWorld, bound: float | None, default: ComparedWorld | None
) -> SchedulerResult:
    sent, in_time, _, _, refused = (row[:-1] for row in world.ledger.table())
    total = max(1, int(sent.sum()))
    attainment = float(in_time.sum() / total)
    measured_ns = max(1, load.duration_ns - load.warmup_ns)
    popular = [place for place in range(len(load.models)) if sent[place] >= max(1, POPULAR * total)]
    p50_ms, p99_ms = quantiles_ms([world.ledger.times_in_time], (0.5, 0.99))
    worst = min(popular, key=lambda place: in_time[place] / sent[place], default=0)
    return SchedulerResult(
        name,
        round(attainment, 5),
        round(attainment / bound, 4) if bound else None,
        round(float(in_time.sum()) * 1e9 / measured_ns, 1),
        round(world.exec_ns / measured_ns / load.cluster.devices, 4),
        round(float(refused.sum() / total), 5),
        round(float((sent - in_time - refused).sum() / total), 5),
        round(p50_ms, 3),
        round(p99_ms, 3),
        load.models[worst].report.spec.name,
        round(float(in_time[worst] / max(1, sent[worst])), 4),
        *(_compare_blocks(world, default, total) or (None, None)),
    )
