"""One scheduler plays one workload with the controller alone: its score, and the worst of the popular models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from horologe_experiments.harness.experiment_world import ExperimentWorld, WorldRecords
from horologe_experiments.harness.interval_ledger import IntervalLedger
from horologe_sim.controller_only.controller_world import START_NS
from horologe_sim.controller_only.direct_device import DeviceEntry
from horologe_sim.engine.simulated_faults import schedule_faults
from horologe_sim.report.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from horologe_experiments.tournament.workload import Workload

    Settings = Mapping[str, Any]

COUNTED = 20
"""Least requests of a model that counts for the worst model."""
LEAST_BUDGET = 2
"""Least SLO of such a model, in times of a request alone."""


class Score(NamedTuple):
    """Share of a workload that a scheduler served. Shares are of the requests with deadlines."""

    value: float
    """Share answered in time. Closed loops, which send more where more is answered: answers in time / capacity."""
    sent: int
    late: float
    timed_out: float
    refused: float
    worst_model: float
    """Smallest share in time of a model, as a part of the mean of all models.

    Models with fewer than `COUNTED` requests are left out. So are, for the smallest, those with an SLO of less than
    `LEAST_BUDGET`, and those whose requests exceed all devices. 1 if there is none."""
    best_effort: float
    """Best-effort answers per second."""


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
    groups = [""] * (workload.groups + 1)
    ledger = IntervalLedger(groups, len(workload.models), workload.duration_ns, workload.warmup_ns)
    observer = Timeline(START_NS + cluster.settle_ns) if timeline is not None else None
    devices = [DeviceEntry(workload.models, factor) for factor in workload.factors]
    world = ExperimentWorld(
        cluster,
        workload.models,
        ledger,
        workload.traits.seed,
        [workload.chunk],
        workload.loops,
        devices,
        WorldRecords(observer=observer),
    )
    world.controller.cluster.distributions.update(workload.distributions)
    schedule_faults(world, workload.faults, world.begin_ns)
    world.run(workload.duration_ns)
    world.check()
    if observer is not None and timeline is not None:
        observer.write(timeline)
    return _score(workload, ledger)


def _score(workload: Workload, ledger: IntervalLedger) -> Score:
    counts = ledger.table()
    sent, in_time, late, timed_out, refused = (row[:-1].astype(float) for row in counts)
    total = max(1.0, sent.sum())
    value = in_time.sum() / (workload.capacity * workload.measured_s if workload.loops else total)
    return Score(
        round(float(value), 5),
        int(total),
        round(float(late.sum() / total), 5),
        round(float(timed_out.sum() / total), 5),
        round(float(refused.sum() / total), 5),
        round(_worst_model(workload, sent, in_time), 4),
        round(float(counts[1, -1] / workload.measured_s), 1),
    )


def _worst_model(workload: Workload, sent: NDArray[np.float64], in_time: NDArray[np.float64]) -> float:
    counted = sent >= COUNTED
    served = in_time[counted] / sent[counted]
    shares = served[workload.can_be_served(sent, LEAST_BUDGET)[counted]]
    mean = served.mean() if served.size else 0.0
    return float(shares.min() / mean) if shares.size and mean else 1.0
