"""A workload under a scheduler: the controller's own core in the lean world, one device, times as the workload says.

Schedulers that go by distributions are told those of `HISTORY` earlier requests, as the profiler would be.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from horologe_common.clock import ms, s, us
from horologe_common.distribution import Distribution
from horologe_common.models import ModelSpec, Profile, TensorSpec
from horologe_common.wire import ModelReport
from horologe_controller.core.runtime_distributions import STATIC_SPREAD, RuntimeDistributions, SoloDistribution
from horologe_controller.settings import ControllerSettings
from horologe_sim.engine.noise import NOISES
from horologe_sim.engine.virtual_worker import SimModel
from horologe_sim.fast.cluster_setting import Setting
from horologe_sim.fast.fast_world import Lean
from horologe_sim.fast.ledger import Ledger
from horologe_sim.fast.traffic import Chunk, Request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from horologe_experiments.orloj.workloads import Workload

HISTORY = 2000
"""Requests that the profiler has run."""
RATIO = 1.1
"""Of the longest to the shortest in a range of lengths."""
FEWEST = 8
"""A range with fewer requests is joined to the one below."""
WAY_NS = us(10)
"""From the controller to the device and back: the bounds beside the table know of none."""
KEY = "model/1"


class Told(NamedTuple):
    """What the scheduler knows of execution times: those of `history`, by length only where `lengths`."""

    history: Workload
    lengths: bool


def finish_rate(
    workload: Workload, told: Told, scheduler: str, knobs: Mapping[str, float | bool | str], way_ns: int = WAY_NS
) -> float:
    """Share of the requests that end in time, messages and turns of the controller taking `way_ns`. Deterministic."""
    controller = msgspec.convert(
        {"scheduler": scheduler, "admission": False, "margin_ns": 0, **knobs}, ControllerSettings
    )
    setting = Setting(
        noise=NOISES["none"], settle_ns=ms(100), client_ns=0, worker_ns=way_ns, turn_ns=way_ns, controller=controller
    )
    requests = [
        Request(solo_ns, f"application {application}", length if told.lengths else 0)
        for solo_ns, application, length in zip(
            workload.solo_ns.tolist(), workload.application.tolist(), workload.length.tolist(), strict=True
        )
    ]
    count = workload.requests
    chunk = Chunk(workload.arrival_ns.tolist(), [0] * count, [workload.slo_ns] * count, [0] * count, requests)
    duration_ns = int(workload.arrival_ns[-1]) + 2 * workload.slo_ns + s(1)
    ledger = Ledger(["all"], 1, duration_ns + s(10))
    lean = Lean(setting, [_model(workload, told.history)], ledger, 0, [chunk])
    if (known := durations(told)) is not None:
        lean.controller.cluster.distributions[KEY] = known
    lean.run(duration_ns)
    lean.check()
    return lean.ledger.lines[0].ok / count


def durations(told: Told) -> RuntimeDistributions | None:
    """What the profiler would have published; None for a model that always takes the same."""
    history = told.history
    if not history.batching.per[0]:
        return None
    parts = []
    for application in np.unique(history.application).tolist():
        chosen = history.application == application
        solo_ns, length = history.solo_ns[chosen], history.length[chosen]
        ranges = _ranges(length) if told.lengths else [(0, np.ones(len(length), bool))]
        name = f"application {application}"
        parts += [
            SoloDistribution(name, longest, Distribution.from_samples(solo_ns[inside])) for longest, inside in ranges
        ]
    known = RuntimeDistributions(_base_ns(history), parts)
    return known if known.spread >= STATIC_SPREAD else None


def _base_ns(workload: Workload) -> int:
    """c0: a batch of `size` takes c0 + size * (longest - c0)."""
    size, fixed_ns = workload.batching.sizes[-1], workload.batching.fixed_ns[-1]
    return fixed_ns // (1 - size)


def _ranges(length: NDArray[np.int64]) -> list[tuple[int, NDArray[np.bool_]]]:
    """(longest, which of the requests) of every range of lengths that holds enough of them."""
    steps = np.floor(np.log(np.maximum(length, 1)) / math.log(RATIO))
    found: list[tuple[int, NDArray[np.bool_]]] = []
    chosen = np.zeros(len(length), bool)
    for step in np.unique(steps):
        chosen = chosen | (steps == step)
        if chosen.sum() >= FEWEST:
            found.append((math.ceil(RATIO ** (step + 1)), chosen))
            chosen = np.zeros(len(length), bool)
    if chosen.any():
        if found:
            chosen = chosen | found.pop()[1]
        found.append((int(length.max()), chosen))
    return found


def _model(workload: Workload, history: Workload) -> SimModel:
    """Its profile is what batches of requests of the mean length take."""
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
    return SimModel(ModelReport(spec, profile), base_ns=_base_ns(workload) if batching.per[0] else 0)
