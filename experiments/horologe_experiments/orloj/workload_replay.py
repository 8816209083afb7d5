"""Simulation of a workload under a scheduler: the controller's core and one simulated device.

Schedulers that use distributions get those of `HISTORY` earlier requests, as the profiler would publish them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from horologe_common.clock import ms, s, us
from horologe_common.distribution import Distribution
from horologe_common.models import ModelSpec, Profile, TensorSpec
from horologe_common.wire import ModelReport
from horologe_controller.core.runtime_distributions import RuntimeDistributions, SoloDistribution
from horologe_controller.settings import ControllerSettings
from horologe_experiments.harness.experiment_world import ExperimentWorld
from horologe_experiments.harness.interval_ledger import IntervalLedger
from horologe_experiments.harness.kind_models import kind_model
from horologe_profiler.core.input_dependence import SPREAD_IN
from horologe_sim.controller_only.controller_world import ClusterSettings
from horologe_sim.controller_only.request_load import Chunk, DynamicRequest
from horologe_sim.engine.noise import NOISES
from horologe_sim.engine.simulated_device import SimModel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from horologe_experiments.orloj.workloads import Workload

HISTORY = 2000
"""Number of earlier requests behind the distributions."""
RATIO = 1.1
"""Ratio of the longest to the shortest length of a range."""
MIN_REQUESTS = 8
"""A range of lengths with fewer requests is merged with the one below."""
WAY_NS = us(10)
"""Time of a message and of a turn of the controller. The bounds assume 0."""
KEY = "model/1"


class SchedulerKnowledge(NamedTuple):
    """Execution times that the scheduler knows: those of `history`. With `lengths`, it knows them by length."""

    history: Workload
    lengths: bool


def finish_rate(
    workload: Workload,
    knowledge: SchedulerKnowledge,
    scheduler: str,
    overrides: Mapping[str, Any],
    way_ns: int = WAY_NS,
    *,
    separate: bool = False,
) -> float:
    """Return the share of requests that finish in time. Messages and turns of the controller take `way_ns`.

    Deterministic. `overrides` are settings of the controller. `separate`: the requests of each known application and
    range of lengths have a queue and a profile of their own, and the scheduler knows no distributions.
    """
    controller = msgspec.convert({"scheduler": scheduler, **overrides}, ControllerSettings)
    setting = ClusterSettings(
        noise=NOISES["none"], settle_ns=ms(100), client_ns=0, worker_ns=way_ns, turn_ns=way_ns, controller=controller
    )
    requests = [
        DynamicRequest(solo_ns, f"application {application}", length if knowledge.lengths else 0)
        for solo_ns, application, length in zip(
            workload.solo_ns.tolist(), workload.application.tolist(), workload.length.tolist(), strict=True
        )
    ]
    count = workload.requests
    models, chosen = [_model(workload, knowledge.history)], [0] * count
    distributions = known_distributions(knowledge)
    if separate and distributions is not None:
        models = [kind_model(models[0], distributions, kind) for kind in range(len(distributions))]
        chosen = [distributions.kind_of(request.application, request.length) for request in requests]
    chunk = Chunk(workload.arrival_ns.tolist(), chosen, [workload.slo_ns] * count, [0] * count, requests)
    duration_ns = int(workload.arrival_ns[-1]) + 2 * workload.slo_ns + s(1)
    ledger = IntervalLedger(["all"], len(models), duration_ns + s(10))
    world = ExperimentWorld(setting, models, ledger, 0, [chunk])
    if distributions is not None and not separate:
        world.controller.cluster.distributions[KEY] = distributions
    world.run(duration_ns)
    world.check()
    return world.ledger.lines[0].ok / count


def known_distributions(knowledge: SchedulerKnowledge) -> RuntimeDistributions | None:
    """Return the distributions that the profiler would publish; None for a model with constant execution time."""
    history = knowledge.history
    if not history.batching.per[0]:
        return None
    parts = []
    for application in np.unique(history.application).tolist():
        chosen = history.application == application
        solo_ns, length = history.solo_ns[chosen], history.length[chosen]
        ranges = _ranges(length) if knowledge.lengths else [(0, np.ones(len(length), bool))]
        name = f"application {application}"
        parts += [
            SoloDistribution(name, longest, Distribution.from_samples(solo_ns[inside]), int(inside.sum()))
            for longest, inside in ranges
        ]
    distributions = RuntimeDistributions(base_ns_of(history), parts)
    return distributions if distributions.spread >= SPREAD_IN else None


def base_ns_of(workload: Workload) -> int:
    """Return c0: a batch of `size` takes c0 + size * (longest - c0)."""
    size, fixed_ns = workload.batching.sizes[-1], workload.batching.fixed_ns[-1]
    return fixed_ns // (1 - size)


def _ranges(length: NDArray[np.int64]) -> list[tuple[int, NDArray[np.bool_]]]:
    """Return (longest length, mask of the requests) for every range of lengths with enough requests."""
    steps = np.floor(np.log(np.maximum(length, 1)) / math.log(RATIO))
    ranges: list[tuple[int, NDArray[np.bool_]]] = []
    chosen = np.zeros(len(length), bool)
    for step in np.unique(steps):
        chosen = chosen | (steps == step)
        if chosen.sum() >= MIN_REQUESTS:
            ranges.append((math.ceil(RATIO ** (step + 1)), chosen))
            chosen = np.zeros(len(length), bool)
    if chosen.any():
        if ranges:
            chosen = chosen | ranges.pop()[1]
        ranges.append((int(length.max()), chosen))
    return ranges


def _model(workload: Workload, history: Workload) -> SimModel:
    """Return the model. Its profile holds the times of batches of requests of mean length."""
    mean_ns = round(float(history.solo_ns.mean()))
    batching = workload.batching
    profile = Profile({size: batching.batch_ns(size, mean_ns) for size in batching.sizes}, ms(1))
    spec = ModelSpec(
        "model",
        "1",
        "emulated",
        (TensorSpec("x", "FP32", (-1, 1)),),
        (TensorSpec("y", "FP32", (-1, 1)),),
        batching.sizes,
        weights_bytes=1,
    )
    return SimModel(ModelReport(spec, profile), base_ns=base_ns_of(workload) if batching.per[0] else 0)
