"""One scheduler plays one workload in the fast world: its score, and the worst of the popular models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from horologe_sim.fast.device_faults import schedule_faults
from horologe_sim.fast.fast_world import START_NS, FastWorld
from horologe_sim.fast.ledger import Ledger
from horologe_sim.report.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from horologe_experiments.tournament.workload import Workload

    Settings = Mapping[str, Any]

POPULAR = 0.01
"""Least share of the requests of a model that counts for the worst model."""


class Score(NamedTuple):
    """What a scheduler served of a workload. Shares are of the requests with deadlines."""

    value: float
    """Share answered in time. Closed loops, which send more where more is answered: answers in time / capacity."""
    sent: int
    late: float
    timed_out: float
    refused: float
    worst_model: float
    """Smallest share in time among the models with at least `POPULAR` of the requests."""
    best_effort: float
    """Best-effort answers per second."""


class ScoreLedger(Ledger):
    """Counts by group without histograms: one group for each model, and one for best effort."""

    def __init__(self, groups: int, from_ns: int) -> None:
        super().__init__([], 0, 1, from_ns)
        self.counts = np.zeros((5, groups), np.int64)
        """(sent, in time, late, timed out, refused; groups)."""

    def sent(self, sent_ns: int, group: int, model: int, cold: bool) -> None:
        """Count a request that was sent."""
        self._count(0, sent_ns, group)

    def answered(self, sent_ns: int, group: int, took_ns: int, slo_ns: int, grace_ns: int) -> None:
        """Count a request that was answered after `took_ns`."""
        late = bool(slo_ns) and took_ns > slo_ns
        self._count(1 + late + (late and took_ns > slo_ns + grace_ns), sent_ns, group)

    def unserved(self, sent_ns: int, group: int) -> None:
        """Count a refused request."""
        self._count(4, sent_ns, group)

    def ran(self, end_ns: int, rows: int, took_ns: int, expected_ns: int, promised_ns: int) -> None:
        """Do nothing."""

    def loaded(self, end_ns: int, took_ns: int, expected_ns: int) -> None:
        """Do nothing."""

    def check(self) -> None:
        """Check that every request has at most one end."""
        assert (self.counts[1:].sum(0) <= self.counts[0]).all()

    def _count(self, row: int, sent_ns: int, group: int) -> None:
        if sent_ns >= self.from_ns:
            self.counts[row, group] += 1


def play(workload: Workload, scheduler: str, settings: Settings, timeline: Path | None = None) -> Score:
    """Let a scheduler play a workload and check every invariant. Deterministic.

    `settings` change fields of the controller's defaults. With `timeline`, all actions are written for Perfetto.
    Raises ValueError for an unknown scheduler or field.
    """
    controller = msgspec.convert(
        msgspec.to_builtins(workload.cluster.controller) | {"scheduler": scheduler, **settings},
        type(workload.cluster.controller),
    )
    cluster = msgspec.structs.replace(workload.cluster, controller=controller)
    ledger = ScoreLedger(workload.groups + 1, workload.warmup_ns)
    observer = Timeline(START_NS + cluster.settle_ns) if timeline is not None else None
    world = FastWorld(
        cluster, workload.models, ledger, workload.traits.seed, [workload.chunk], workload.loops,
        factors=workload.factors, observer=observer,
    )  # fmt: skip
    world.controller.cluster.distributions.update(workload.distributions)
    schedule_faults(world, workload.faults)
    world.run(workload.duration_ns)
    world.check()
    if observer is not None and timeline is not None:
        observer.write(timeline)
    return _score(workload, ledger)


def _score(workload: Workload, ledger: ScoreLedger) -> Score:
    sent, in_time, late, timed_out, refused = (row[:-1].astype(float) for row in ledger.counts)
    total = max(1.0, sent.sum())
    popular = sent >= POPULAR * total
    value = in_time.sum() / (workload.capacity * workload.measured_s if workload.loops else total)
    return Score(
        round(float(value), 5),
        int(total),
        round(float(late.sum() / total), 5),
        round(float(timed_out.sum() / total), 5),
        round(float(refused.sum() / total), 5),
        round(float((in_time[popular] / sent[popular]).min(initial=1.0)), 4),
        round(float(ledger.counts[1, -1] / workload.measured_s), 1),
    )
