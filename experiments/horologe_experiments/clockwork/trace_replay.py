"""What fig8 and scale share: a replay of the Azure trace on a cluster, and the panels of Fig. 8."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from horologe_experiments.traces.azure_functions import Mapping as Mapping
from horologe_experiments.traces.azure_functions import Replay, replay
from horologe_sim.fast.cluster_setting import Setting
from horologe_sim.fast.ledger import SIGNS, Ledger, Panel
from horologe_sim.fast.traffic import Stream, poisson

if TYPE_CHECKING:
    from horologe_experiments.harness.runner import SimulationRuns

MINUTE_NS = 60_000_000_000


class Variant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one replay has of its own."""

    name: str
    slo_ns: int
    devices: int
    order: Literal["table", "cheapest"]
    start: int
    wanted: float
    """Share to be served in time; 0: the run stands beside the others, without a bar."""
    first_minute: int | None = None
    """Instead of the mapping's."""
    duration_ns: int | None = None
    """If shorter than the scene's."""


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A scene file of fig8 or scale."""

    description: str
    rate: float
    """Mean requests a second."""
    warmup_ns: int
    duration_ns: int
    """Without the warm-up."""
    mapping: Mapping
    cluster: Setting
    runs: tuple[Variant, ...]

    def all(self) -> list[Run]:
        """The runs, each with everything it depends on."""
        return [
            Run(
                one.name,
                self.rate,
                one.slo_ns,
                one.wanted,
                self._mapping(one),
                msgspec.structs.replace(self.cluster, devices=one.devices),
                self.warmup_ns,
                min(self.duration_ns, one.duration_ns or self.duration_ns),
            )
            for one in self.runs
        ]

    def _mapping(self, one: Variant) -> Mapping:
        first_minute = self.mapping.first_minute if one.first_minute is None else one.first_minute
        return msgspec.structs.replace(self.mapping, order=one.order, start=one.start, first_minute=first_minute)


class Run(NamedTuple):
    """One replay."""

    name: str
    rate: float
    slo_ns: int
    wanted: float
    mapping: Mapping
    cluster: Setting
    warmup_ns: int
    duration_ns: int


def play(run: Run, runs: SimulationRuns, seed: int) -> tuple[Ledger, Replay]:
    """The replay, and the trace laid over the models."""
    total_ns = run.warmup_ns + run.duration_ns
    laid = replay(run.mapping, run.rate, max(1, -(-total_ns // MINUTE_NS)))
    ledger = Ledger(["all"], len(laid.models), MINUTE_NS, run.warmup_ns)
    stream = Stream(lambda minute: laid.rates[minute], MINUTE_NS, lambda minute: run.slo_ns)
    runs.simulate(run.name, run.cluster, laid.models, ledger, seed, total_ns, poisson([stream], total_ns, [seed, 3]))
    return ledger, laid


def row(run: Run, ledger: Ledger, laid: Replay) -> dict[str, Any]:
    """The figures of one replay."""
    (line,) = ledger.lines
    seconds = run.duration_ns / 1e9
    panels = ledger.panels
    return {
        "run": run.name,
        "devices": run.cluster.devices,
        "slo_ms": run.slo_ns / 1e6,
        "sent": line.sent,
        "offered": round(line.sent / seconds, 1),
        "goodput": round(line.ok / seconds, 1),
        "satisfaction": round(line.satisfaction, 7),
        "refused": line.unserved,
        "timed_out": line.timed_out,
        "late": line.late,
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
        "best_batch_work": round(laid.offered_devices / run.cluster.devices, 4),
        "exec_busy": round(_busy(ledger, run, "exec_ns"), 4),
        "load_busy": round(_busy(ledger, run, "load_ns"), 4),
    }


def panels(run: Run, ledger: Ledger) -> list[dict[str, Any]]:
    """Minute by minute, what Fig. 8 (a) to (e) show."""
    total_ns = run.warmup_ns + run.duration_ns
    found = []
    for minute, panel in enumerate(ledger.panels[: -(-total_ns // MINUTE_NS)]):
        seconds = min(MINUTE_NS, total_ns - minute * MINUTE_NS) / 1e9
        found.append(_panel(minute, panel, seconds))
    return found


def errors(ledger: Ledger) -> list[dict[str, Any]]:
    """Prediction and completion errors as in Fig. 9: p50, p99 and the largest, over- and underpredicted apart."""
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


def told(run: Run, laid: Replay) -> str:
    """How the trace was laid over the models, in words."""
    mapping = run.mapping
    return (
        f"{len(laid.models)} instances, without {', '.join(mapping.left_out)}; the largest function (63% of calls) in "
        f"{mapping.shares} equal shares, the next {mapping.whole} whole, each of the rest as {mapping.duplicates} "
        f"workloads at hours apart; dealt to varieties in the order {mapping.order!r} from place {mapping.start}; "
        f"work at best batch {laid.offered_devices / run.cluster.devices:.1%} of {run.cluster.devices} devices; "
        f"page cache {run.cluster.pages} pages of 16 MiB on each"
    )


def _busy(ledger: Ledger, run: Run, field: str) -> float:
    total_ns = run.warmup_ns + run.duration_ns
    return float(sum(getattr(panel, field) for panel in ledger.panels) / total_ns / run.cluster.devices)


def _panel(minute: int, panel: Panel, seconds: float) -> dict[str, Any]:
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
