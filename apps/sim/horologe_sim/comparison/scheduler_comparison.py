"""Plays the same requests under several schedulers, and shows the results side by side with a bound."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from horologe_controller.schedulers import AUTO, DEFAULT
from horologe_sim.comparison.bound import measured_requests, score_bound
from horologe_sim.comparison.played_load import build_load
from horologe_sim.controller_only.controller_world import ControllerWorld, WorldOptions
from horologe_sim.controller_only.rehearsed_tuner import RehearsedTuner
from horologe_sim.engine.durations import DurationSamples, quantiles_ms
from horologe_sim.engine.ledger import Ledger
from horologe_sim.report.tables import Table
from horologe_sim.scenario.scenario_checks import check_scheduler
from horologe_tuner.settings import TunerSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_sim.comparison.played_load import PlayedLoad
    from horologe_sim.scenario.scenario import Scenario

COMPARED = (DEFAULT, AUTO, "clockwork", "orloj", "edf", "nexus", "deferred", "clipper")
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
        choice = "" if best.scheduler == AUTO else f' or "{best.scheduler}"'
        return f'{text}; {more}: consider controller.scheduler = "{AUTO}"{choice}'

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
    """Counts by model, the latencies of answers in time, and the time of EXECs between `from_ns` and `until_ns`."""

    def __init__(self, groups: Sequence[str], from_ns: int, until_ns: int) -> None:
        super().__init__(groups, from_ns=from_ns)
        self.until_ns = until_ns
        self.times_in_time = DurationSamples()
        self.exec_ns = 0
        self.blocks = np.zeros(BLOCKS, np.int64)
        """Answers in time by the part of the load in which their request was sent."""

    def answered(self, sent_ns: int, group: int, took_ns: int, slo_ns: int, grace_ns: int) -> None:
        """Count a request that was answered after `took_ns`."""
        super().answered(sent_ns, group, took_ns, slo_ns, grace_ns)
        if sent_ns >= self.from_ns and 0 < took_ns <= slo_ns:
            self.times_in_time.add(took_ns)
            block = (sent_ns - self.from_ns) * BLOCKS // max(1, self.until_ns - self.from_ns)
            self.blocks[min(block, BLOCKS - 1)] += 1

    def ran(self, end_ns: int, rows: int, took_ns: int, expected_ns: int, promised_ns: int) -> None:
        """Count a finished INFER."""
        self.exec_ns += max(0, min(end_ns, self.until_ns) - max(end_ns - took_ns, self.from_ns))


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
    ledgers = {}
    for number, name in enumerate(names):

        def on_progress(done: float, number: int = number, name: str = name) -> None:
            if progress:
                progress((number + done) / len(names), name)

        ledgers[name] = _play(load, name, scenario.seed, on_progress)
    results = [_summarize(load, name, ledger, bound, ledgers.get(DEFAULT)) for name, ledger in ledgers.items()]
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


def _play(load: PlayedLoad, name: str, seed: int, progress: Callable[[float], None]) -> ComparedLedger:
    controller = load.cluster.controller.with_scheduler(name)
    ledger = ComparedLedger([""] * (len(load.models) + 1), load.warmup_ns, load.duration_ns)
    tuner = RehearsedTuner(TunerSettings()) if name == AUTO else None
    cluster = msgspec.structs.replace(load.cluster, controller=controller)
    options = WorldOptions(load.devices, [tuner.core] if tuner else ())
    world = ControllerWorld(cluster, load.models, ledger, seed, [load.chunk], options=options)
    if tuner:
        tuner.attach(world)
    world.controller.cluster.distributions.update(load.distributions)
    world.run(load.duration_ns, progress)
    world.check()
    return ledger


def _compare_blocks(ledger: ComparedLedger, default: ComparedLedger | None, total: int) -> tuple[float, float] | None:
    """Return by which share of the requests a scheduler is ahead of the default, and the standard error."""
    if default is None:
        return None
    more = (ledger.blocks - default.blocks) / total
    return round(float(more.sum()), 5), round(float(np.sqrt(BLOCKS) * more.std(ddof=1)), 5)


def _summarize(
    load: PlayedLoad, name: str, ledger: ComparedLedger, bound: float | None, default: ComparedLedger | None
) -> SchedulerResult:
    sent, in_time, _, _, refused = (row[:-1] for row in ledger.table())
    total = max(1, int(sent.sum()))
    attainment = float(in_time.sum() / total)
    measured_ns = max(1, load.duration_ns - load.warmup_ns)
    popular = [place for place in range(len(load.models)) if sent[place] >= max(1, POPULAR * total)]
    p50_ms, p99_ms = quantiles_ms([ledger.times_in_time], (0.5, 0.99))
    worst = min(popular, key=lambda place: in_time[place] / sent[place], default=0)
    return SchedulerResult(
        name,
        round(attainment, 5),
        round(attainment / bound, 4) if bound else None,
        round(float(in_time.sum()) * 1e9 / measured_ns, 1),
        round(ledger.exec_ns / measured_ns / load.cluster.devices, 4),
        round(float(refused.sum() / total), 5),
        round(float((sent - in_time - refused).sum() / total), 5),
        round(p50_ms, 3),
        round(p99_ms, 3),
        load.models[worst].report.spec.name,
        round(float(in_time[worst] / max(1, sent[worst])), 4),
        *(_compare_blocks(ledger, default, total) or (None, None)),
    )
