"""Predictions for a given plan: latencies by another model, and the execution time of every batch size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from horologe_common.interference.prediction import INTERFERENCE_MODELS, predict_shares, stack_coefficients

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.interference.prediction import Array, InterferenceModel
    from horologe_planning.provisioning.share_tables import GpuType
    from horologe_planning.provisioning.workloads import PlannedGpu, SharingPlan

NS_PER_MS = 1e6


def with_predictions(plan: SharingPlan, kinds: Sequence[GpuType], model: InterferenceModel) -> SharingPlan:
    """Return the plan with latencies and throughputs predicted by a model and the coefficients of `kinds`.

    Shares of more than 100% in sum are scaled down to 100%: the processors are oversubscribed.
    """
    by_name = {kind.gpu.name: kind for kind in kinds}
    return msgspec.structs.replace(plan, gpus=tuple(_predicted(gpu, by_name[gpu.gpu_type], model) for gpu in plan.gpus))


def with_batch_times(plan: SharingPlan, kinds: Sequence[GpuType], model: str) -> SharingPlan:
    """Return the plan with `exec_ns` of each share, for batches of 1 to its planned size.

    `model`: name of an interference model. Neighbours run batches of their planned size. Shares of more than 100% in
    sum count as in `with_predictions`.
    """
    by_name = {kind.gpu.name: kind for kind in kinds}
    predictor = INTERFERENCE_MODELS[model]
    gpus = tuple(_with_times(gpu, by_name[gpu.gpu_type], predictor) for gpu in plan.gpus)
    return msgspec.structs.replace(plan, gpus=gpus)


def _predicted(gpu: PlannedGpu, kind: GpuType, model: InterferenceModel) -> PlannedGpu:
    coefficients, share = _shares(gpu, kind)
    batch = np.array([float(placement.batch) for placement in gpu.placements])
    predicted = predict_shares(model, kind.gpu, coefficients, batch, share)
    placements = tuple(
        msgspec.structs.replace(
            placement, latency_ms=latency, throughput=throughput,
            deviation_ms=latency * kind.models[placement.model].relative_error,
        )
        for placement, latency, throughput in zip(
            gpu.placements, predicted.latency_ms.tolist(), predicted.throughput.tolist(), strict=True
        )
    )  # fmt: skip
    return msgspec.structs.replace(gpu, placements=placements)


def _with_times(gpu: PlannedGpu, kind: GpuType, model: InterferenceModel) -> PlannedGpu:
    coefficients, share = _shares(gpu, kind)
    timed = []
    for slot, placement in enumerate(gpu.placements):
        batch = np.tile([float(other.batch) for other in gpu.placements], (placement.batch, 1))
        batch[:, slot] = np.arange(1, placement.batch + 1)
        gpu_ms = predict_shares(model, kind.gpu, coefficients[:, None, :], batch, share[None, :]).gpu_ms[:, slot]
        times = {size: round(time_ms * NS_PER_MS) for size, time_ms in enumerate(gpu_ms.tolist(), start=1)}
        timed.append(msgspec.structs.replace(placement, exec_ns=times))
    return msgspec.structs.replace(gpu, placements=tuple(timed))


def _shares(gpu: PlannedGpu, kind: GpuType) -> tuple[Array, Array]:
    """Return the coefficients, and the shares of at most 100% in sum."""
    share = np.array([placement.share_percent for placement in gpu.placements])
    share *= min(1.0, 100 / float(share.sum()))
    return stack_coefficients([kind.models[placement.model] for placement in gpu.placements]), share
