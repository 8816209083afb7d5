"""Parts of a predicted latency: what a workload needs alone, and what its neighbours add (iGniter Eq. 1 to 11).

A batch of 6 of `vgg19` on 37.5% of a V100, beside `resnet50` and `alexnet`, takes 28.7 ms. Alone it would take 26.96
ms: 0.36 ms to load, 0.04 ms for scheduling, 26.56 ms active. Neighbours add 1.36 ms, the lower clock rate 0.39 ms.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from horologe_common.interference.prediction import run_alone, stack_coefficients

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.interference.coefficients import GpuCoefficients, ModelCoefficients
    from horologe_common.interference.prediction import Array, InterferenceModel
    from horologe_planning.provisioning.workloads import GpuType, Workload

SHOWN_MS = 0.005
"""Smallest part that a text names: it prints two digits."""


class LatencyParts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parts of the latency of one batch in ms. Their sum is the prediction."""

    load: float
    scheduling: float
    active: float
    feedback: float
    """Up to here: alone, at the highest clock rate."""
    neighbour_scheduling: float = 0.0
    """Longer scheduling delay of the kernels (Eq. 6)."""
    neighbour_cache: float = 0.0
    """Longer active time by contention for the L2 cache (Eq. 8)."""
    neighbour_transfer: float = 0.0
    """Longer transfers by contention for PCIe."""
    clock: float = 0.0
    """Lower clock rate under the power cap (Eq. 9), by all workloads of the GPU together."""

    @property
    def total(self) -> float:
        """Return the latency in ms."""
        return float(sum(getattr(self, field) for field in self.__struct_fields__))

    def text(self) -> str:
        """Return the parts as a phrase. Effects of neighbours and of the power cap are named if there are any."""
        names = [("load", True), ("scheduling", True), ("active", True), ("feedback", True)]
        names += [(name, False) for name in self.__struct_fields__[4:]]
        shown = [(name, getattr(self, name)) for name, always in names if always or getattr(self, name) >= SHOWN_MS]
        return ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in shown)


def latency_parts(
    model: InterferenceModel, gpu: GpuCoefficients, models: Sequence[ModelCoefficients], batch: Array, share: Array
) -> list[LatencyParts]:
    """Return the parts for each workload of one GPU. `batch` in rows and `share` in percent, per workload.

    Each effect is the difference that it makes when the effects before it, in the order clock, cache, scheduling and
    transfer, are left out.
    """
    alone = run_alone(gpu, stack_coefficients(models), batch, share)
    latencies = [model.predict(gpu, alone).latency_ms]
    for left_out in (
        {"frequency_slope": 0.0},
        {"cache_scale": 0.0},
        {"scheduling_slope_ms": 0.0, "scheduling_offset_ms": 0.0},
    ):
        gpu = msgspec.structs.replace(gpu, **left_out)
        latencies.append(model.predict(gpu, alone).latency_ms)
    own = np.stack([alone.load_ms, alone.scheduling_ms, alone.active_ms, alone.feedback_ms])
    clock, cache, scheduling = (before - after for before, after in pairwise(latencies))
    columns = np.vstack([own, scheduling, cache, latencies[-1] - own.sum(axis=0), clock])
    return [LatencyParts(*column) for column in columns.T.tolist()]


def explain_infeasible(kind: GpuType, model: InterferenceModel, workload: Workload, margin: float) -> str:
    """Return the parts of the latency of the smallest batch on a whole GPU, and the limit, in one phrase.

    `margin`: standard deviations of the prediction error that the limit leaves room for.
    """
    gpu, models = kind
    coefficients, batch = models[workload.model], workload.batches[0]
    error = margin * coefficients.relative_error
    (parts,) = latency_parts(model, gpu, [coefficients], np.array([float(batch)]), np.array([100.0]))
    wanted = f"at most {workload.slo_ms / 2 / (1 + error):.2f} ms, half of the SLO"
    wanted += f" less a margin of {error:.1%}" if error else ""
    return f"{gpu.name}: batch {batch} takes {parts.total:.2f} ms of a whole GPU ({parts.text()}), wanted {wanted}"
