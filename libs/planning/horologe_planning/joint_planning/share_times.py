"""Execution times of a model on a share of a GPU beside neighbours: a measured profile times predicted interference.

The profile of the whole GPU is measured. The interference model (iGniter Eq. 1 to 11) predicts by which factor a batch
takes longer on a share beside its neighbours than alone on the whole GPU:

    t(b, share, neighbours) = profile(b) * e(b, share, neighbours) / e(b, 100%, none) + more time for loading

e is the time of GPU execution and feedback. Loading overlaps the execution of the batch before (iGniter Eq. 2) and is
no part of the profile, so only the time that neighbours add to it counts. Neighbours are taken to execute batches of
their largest size without a pause, as in the paper.

A batch of 8 of `resnet50_v2` takes 9.93 ms on a whole V100, 17.16 ms on half of it, and 18.89 ms on that half beside
`resnet152_v2` with batches of 16 on the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from horologe_common.interference.prediction import (
    DEFAULT_INTERFERENCE_MODEL,
    INTERFERENCE_MODELS,
    predict_shares,
    stack_coefficients,
)
from horologe_planning.joint_planning.layouts import WHOLE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from horologe_common.interference.prediction import Prediction
    from horologe_common.interference.v100 import GpuCatalogue
    from horologe_planning.profiles import Profiles, StageProfile


SharedModel = tuple[str, float, int]
"""Model, percent of the device and batch size of a share."""


class ShareTimes:
    """Times on shares of the GPU types that have coefficients."""

    def __init__(
        self,
        gpus: Mapping[str, GpuCatalogue],
        profiles: Profiles,
        margin: float = 1.0,
        interference: str = DEFAULT_INTERFERENCE_MODEL,
    ) -> None:
        """`gpus`: hardware type -> coefficients. `margin`: standard deviations of the prediction error that are added
        to predicted times. Whole devices have measured times, without a margin.
        """
        self._gpus, self._profiles, self._margin = gpus, profiles, margin
        self._model = INTERFERENCE_MODELS[interference]

    def is_shareable(self, hardware: str, model: str) -> bool:
        """Return whether the model has coefficients and a profile on this hardware type."""
        return (
            hardware in self._gpus
            and model in self._gpus[hardware].models
            and hardware in self._profiles.get(model, {})
        )

    def profile(self, hardware: str, model: str, percent: float, neighbours: Sequence[SharedModel]) -> StageProfile:
        """Return the profile of a model on a share.

        The profile of the whole device is returned unchanged for 100% without neighbours. Raises KeyError for a model
        without coefficients.
        """
        whole = self._profiles[model][hardware]
        if percent == WHOLE and not neighbours:
            return whole
        sizes = np.array(whole.batch_sizes, float)
        alone = self._predict(hardware, sizes, (model, WHOLE, 1), ())
        beside = self._predict(hardware, sizes, (model, percent, 1), neighbours)
        error = 1 + self._margin * self._gpus[hardware].models[model].relative_error
        execution = (beside.gpu_ms + beside.feedback_ms)[:, 0] / (alone.gpu_ms + alone.feedback_ms)[:, 0] * error
        loading_ns = np.maximum(beside.load_ms - alone.load_ms, 0.0)[:, 0] * 1e6 * error
        factors = dict(zip(whole.batch_sizes, zip(execution.tolist(), loading_ns.tolist(), strict=True), strict=True))
        latency_ns = {size: round(ns * factors[size][0] + factors[size][1]) for size, ns in whole.latency_ns.items()}
        longest = max(factor for factor, _ in factors.values())
        return msgspec.structs.replace(
            whole,
            hardware=share_name(hardware, percent, neighbours),
            latency_ns=latency_ns,
            base_ns=round(whole.base_ns * longest + max(loading for _, loading in factors.values())),
            row_ns=tuple(round(ns * longest) for ns in whole.row_ns),
        )

    def _predict(
        self, hardware: str, sizes: NDArray[np.float64], own: SharedModel, neighbours: Sequence[SharedModel]
    ) -> Prediction:
        """Return the prediction of a device for each batch size of the first share: (sizes, shares)."""
        gpu, models = self._gpus[hardware]
        present = (own, *neighbours)
        stacked = stack_coefficients([models[model] for model, _, _ in present])[:, None, :]
        batch = np.tile(np.array([float(size) for _, _, size in present]), (sizes.size, 1))
        batch[:, 0] = sizes
        share = np.tile(np.array([percent for _, percent, _ in present]), (sizes.size, 1))
        return predict_shares(self._model, gpu, stacked, batch, share)


def share_name(hardware: str, percent: float, neighbours: Sequence[SharedModel]) -> str:
    """Return a name of a share for profiles, as "v100/40% beside resnet50_v2/60%/8"."""
    beside = " + ".join(f"{model}/{share:g}%/{batch}" for model, share, batch in neighbours)
    return f"{hardware}/{percent:g}%" + (f" beside {beside}" if beside else "")
