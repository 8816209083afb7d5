"""A run of `horologe experiment batching`: the scheduler `clipper` with one model on a simulated device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from horologe_experiments.clockwork.catalogue_models import CatalogueModel
from horologe_experiments.harness.interval_ledger import IntervalLedger
from horologe_experiments.harness.request_streams import PoissonStream, poisson
from horologe_experiments.harness.runner import BatchLog

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_experiments.harness.runner import SimulationRuns
    from horologe_experiments.live.batch_times import BatchTimes
    from horologe_sim.controller_only.controller_world import ClusterSettings


class BatchingCase(NamedTuple):
    """Parameters of a run. Requests have `unit` rows each."""

    label: str
    model: BatchTimes
    unit: int
    largest: int
    """Largest batch, in requests."""
    rate: float
    """Requests per second."""
    warmup_ns: int
    duration_ns: int
    settings: Mapping[str, Any]


class BatchingRun(NamedTuple):
    """The result of a run after the warm-up."""

    rows_per_s: float
    batch_rows: float
    batch_p99_ms: float
    request_p50_ms: float
    request_p99_ms: float
    busy: float
    """Utilisation of the device."""


def simulate_case(
    case: BatchingCase, cluster: ClusterSettings, slo_ns: int, seed: int, runs: SimulationRuns
) -> BatchingRun:
    """Simulate a case on one device with the measured times."""
    exec_ms = {size: case.model.batch_ms(size * case.unit) for size in range(1, case.largest + 1)}
    (model,) = CatalogueModel(case.model.name, 1.0, 1.0, exec_ms).copies(1)
    controller = msgspec.structs.replace(cluster.controller, **case.settings)
    setting = msgspec.structs.replace(cluster, controller=controller)
    ledger = IntervalLedger(["all"], 1, case.duration_ns, case.warmup_ns)
    stream = PoissonStream(lambda step: np.array([case.rate]), case.duration_ns, lambda step: slo_ns)
    batches = BatchLog()
    chunks = poisson([stream], case.duration_ns, [seed, 3])
    world = runs.simulate(
        case.label, setting, [model], ledger, seed, case.duration_ns, chunks, watch=batches.record_result
    )
    requests, took_ms = batches.between(world.begin_ns + case.warmup_ns, world.begin_ns + case.duration_ns)
    seconds, times = (case.duration_ns - case.warmup_ns) / 1e9, ledger.lines[0].times
    return BatchingRun(
        case.unit * float(requests.sum()) / seconds,
        case.unit * float(requests.mean()),
        float(np.quantile(took_ms, 0.99)),
        times.quantile_ms(0.5),
        times.quantile_ms(0.99),
        float(took_ms.sum()) / 1e3 / seconds,
    )
