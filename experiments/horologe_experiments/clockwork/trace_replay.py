"""Replay of the Azure trace on a simulated cluster, for fig8 and scale."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from horologe_experiments.harness.interval_ledger import SIGNS, IntervalCounts, IntervalLedger
from horologe_experiments.harness.request_streams import PoissonStream, poisson
from horologe_experiments.harness.runner import with_scheduler
from horologe_experiments.traces.azure_functions import Mapping as Mapping
from horologe_experiments.traces.azure_functions import Replay, replay
from horologe_sim.controller_only.controller_world import ClusterSettings

if TYPE_CHECKING:
    from horologe_experiments.harness.runner import SimulationRuns

MINUTE_NS = 60_000_000_000


class Variant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields of one replay that differ from the scene."""

    name: str
    slo_ns: int
    devices: int
    order: Literal["table", "cheapest"]
    start: int
    wanted: float
    """Share to be served in time; 0: no bar."""
    wanted_cold: float = 0.0
    """Least share of cold starts: with fewer, the trace would not test them."""
    first_minute: int | None = None
    """Replaces the mapping's."""
    duration_ns: int | None = None
    """Replaces the scene's if shorter."""


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scene file of fig8 and of scale."""

    description: str
    rate: float
    """Mean rate in requests per second."""
    warmup_ns: int
    duration_ns: int
    """Length after the warm-up."""
    mapping: Mapping
    schedulers: tuple[str, ...]
    """The bars are for the first one."""
    cluster: ClusterSettings
    runs: tuple[Variant, ...]

    def replays(self) -> list[TraceRun]:
        """Return the runs with all their parameters."""
        return [self._replay(variant, scheduler) for scheduler in self.schedulers for variant in self.runs]

    def _replay(self, variant: Variant, scheduler: str) -> TraceRun:
        cluster = with_scheduler(self.cluster, scheduler)
        return TraceRun(
            variant.name,
            self.rate,
            variant.slo_ns,
            variant.wanted if scheduler == self.schedulers[0] else 0.0,
            variant.wanted_cold,
            self._mapping(variant),
            msgspec.structs.replace(cluster, devices=variant.devices),
            self.warmup_ns,
            min(self.duration_ns, variant.duration_ns or self.duration_ns),
        )

    def _mapping(self, variant: Variant) -> Mapping:
        first_minute = self.mapping.first_minute if variant.first_minute is None else variant.first_minute
        return msgspec.structs.replace(
            self.mapping, order=variant.order, start=variant.start, first_minute=first_minute
        )


class TraceRun(NamedTuple):
    """A replay with all its parameters."""

    name: str
    rate: float
    slo_ns: int
    wanted: float
    wanted_cold: float
    mapping: Mapping
    cluster: ClusterSettings
    warmup_ns: int
    duration_ns: int


def simulate_replay(run: TraceRun, runs: SimulationRuns, seed: int) -> tuple[IntervalLedger, Replay]:
    """Simulate a replay. Return its ledger and the trace as rates by model."""
    total_ns = run.warmup_ns + run.duration_ns
    trace = replay(run.mapping, run.rate, max(1, -(-total_ns // MINUTE_NS)))
    ledger = IntervalLedger(["all"], len(trace.models), MINUTE_NS, run.warmup_ns)
    stream = PoissonStream(lambda minute: trace.rates[minute], MINUTE_NS, lambda minute: run.slo_ns)
    runs.simulate(run.name, run.cluster, trace.models, ledger, seed, total_ns, poisson([stream], total_ns, [seed, 3]))
    return ledger, trace


def replay_row(run: TraceRun, ledger: IntervalLedger, trace: Replay) -> dict[str, Any]:
    """Return the figures of one replay."""
    (line,) = ledger.lines
    seconds = run.duration_ns / 1e9
    panels = ledger.panels
    return {
        "run": run.name,
        "scheduler": run.cluster.controller.scheduler,
        "devices": run.cluster.devices,
        "slo_ms": run.slo_ns / 1e6,
        "sent": line.sent,
        "offered": round(line.sent / seconds, 1),
        "goodput": round(line.ok / seconds, 1),
        "satisfaction": round(line.satisfaction, 7),
        "refused": line.refused,
        "timed_out": line.lost,
        "late": line.late,
        "missed": round((line.late + line.lost) / max(1, line.sent), 7),
        "p50_ms": line.times.quantile_ms(0.5),
        "p99_ms": line.times.quantile_ms(0.99),
        "p9999_ms": line.times.quantile_ms(0.9999),
        "max_ms": round(line.times.max_ns / 1e6, 3),
        "cold_share": round(line.cold / max(1, line.sent), 4),
        "cold_rate": round(line.cold / seconds, 1),
        "cold_models_a_minute": round(sum(sum(panel.cold_models) for panel in panels) / max(1, len(panels)), 1),
        "rows_a_batch": round(sum(panel.rows for panel in panels) / max(1, sum(panel.batches for panel in panels)), 3),
        "loads_a_second": round(ledger.loads / seconds, 1),
        "too_late": ledger.too_late,
        "best_batch_work": round(trace.offered_devices / run.cluster.devices, 4),
        "exec_busy": round(_busy(ledger, run, "exec_ns"), 4),
        "load_busy": round(_busy(ledger, run, "load_ns"), 4),
    }


def minute_rows(run: TraceRun, ledger: IntervalLedger) -> list[dict[str, Any]]:
    """Return a row per minute with the values of Fig. 8 (a) to (e)."""
    total_ns = run.warmup_ns + run.duration_ns
    rows = []
    for minute, panel in enumerate(ledger.panels[: -(-total_ns // MINUTE_NS)]):
        seconds = min(MINUTE_NS, total_ns - minute * MINUTE_NS) / 1e9
        rows.append(_minute_row(minute, panel, seconds))
    return rows


def error_rows(ledger: IntervalLedger) -> list[dict[str, Any]]:
    """Return prediction and completion errors as in Fig. 9, for over- and underprediction: p50, p99 and largest."""
    return [
        {
            "error": f"{kind}, {sign}",
            "count": ledger.errors[kind, sign].total,
            "p50_ms": ledger.errors[kind, sign].quantile_ms(0.5),
            "p99_ms": ledger.errors[kind, sign].quantile_ms(0.99),
            "max_ms": round(ledger.errors[kind, sign].max_ns / 1e6, 3),
        }
        for kind in ("infer", "load", "completion")
        for sign in SIGNS
    ]


def describe_replay(run: TraceRun, trace: Replay) -> str:
    """Describe the mapping of the trace to models in a sentence."""
    mapping = run.mapping
    return (
        f"{len(trace.models)} instances, without {', '.join(mapping.left_out)}; the largest function (63% of calls) in "
        f"{mapping.shares} equal shares, the next {mapping.whole} whole, each of the rest as {mapping.duplicates} "
        f"workloads, hours apart; assigned to models in the order {mapping.order!r} from index {mapping.start}; "
        f"work at best batch {trace.offered_devices / run.cluster.devices:.1%} of {run.cluster.devices} devices; "
        f"page cache {run.cluster.pages} pages of 16 MiB on each"
    )


def _busy(ledger: IntervalLedger, run: TraceRun, field: str) -> float:
    total_ns = run.warmup_ns + run.duration_ns
    return float(sum(getattr(panel, field) for panel in ledger.panels) / total_ns / run.cluster.devices)


def _minute_row(minute: int, panel: IntervalCounts, seconds: float) -> dict[str, Any]:
    (line,) = panel.lines
    return {
        "minute": minute,
        "offered": round(line.sent / seconds, 1),
        "goodput": round(line.ok / seconds, 1),
        "p50_ms": line.times.quantile_ms(0.5),
        "p99_ms": line.times.quantile_ms(0.99),
        "max_ms": round(line.times.max_ns / 1e6, 3),
        "rows_a_batch": round(panel.rows / max(1, panel.batches), 3),
        "cold_models": sum(panel.cold_models),
        "cold_rate": round(line.cold / seconds, 1),
    }
