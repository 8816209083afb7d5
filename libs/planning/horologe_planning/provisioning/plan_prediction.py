"""Predictions for given plans: the execution time of every batch size on each share.

`vgg19` on 37.5% of a V100, planned for batches of 6 beside `resnet50` and `alexnet`, gets six times: from 6.43 ms for a
batch of 1 to 28.31 ms for a batch of 6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from horologe_common.clock import ms
from horologe_common.interference.prediction import INTERFERENCE_MODELS, predict_shares, stack_coefficients
from horologe_planning.provisioning.device_shares import shares_by_device, with_shares

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.interference.prediction import Array, InterferenceModel
    from horologe_planning.plan import Plan
    from horologe_planning.provisioning.device_shares import PlacedShare
    from horologe_planning.provisioning.share_tables import GpuType


def with_batch_times(plans: Sequence[Plan], kinds: Sequence[GpuType], model: str) -> tuple[Plan, ...]:
    """Return the plans with `exec_ns` of each share, for batches of 1 to its planned size.

    `model`: name of an interference model. Neighbours run batches of their planned size. Shares of more than 100% in
    sum are scaled down to 100%: the processors are oversubscribed.
    """
    by_name = {kind.gpu.name: kind for kind in kinds}
    shares: list[PlacedShare] = []
    for present in shares_by_device(plans).values():
        shares += _with_times(present, by_name[present[0].placement.hardware], INTERFERENCE_MODELS[model])
    return with_shares(plans, shares)


def _with_times(shares: Sequence[PlacedShare], kind: GpuType, model: InterferenceModel) -> list[PlacedShare]:
    coefficients, percent = device_sizes(shares, kind)
    timed = []
    for slot, share in enumerate(shares):
        largest = share.placement.max_batch
        batch = np.tile([float(other.placement.max_batch) for other in shares], (largest, 1))
        batch[:, slot] = np.arange(1, largest + 1)
        gpu_ms = predict_shares(model, kind.gpu, coefficients[:, None, :], batch, percent[None, :]).gpu_ms[:, slot]
        times = tuple((size, ms(time_ms)) for size, time_ms in enumerate(gpu_ms.tolist(), start=1))
        timed.append(share._replace(placement=msgspec.structs.replace(share.placement, exec_ns=times)))
    return timed


def device_sizes(shares: Sequence[PlacedShare], kind: GpuType) -> tuple[Array, Array]:
    """Return the coefficients, and the percents of at most 100 in sum."""
    percent = np.array([share.placement.percent for share in shares])
    percent *= min(1.0, 100 / float(percent.sum()))
    return stack_coefficients([kind.models[share.placement.coefficients] for share in shares]), percent
