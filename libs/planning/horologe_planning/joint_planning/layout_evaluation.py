"""Evaluates layouts with the estimator: each share is a group of replicas with the times beside its neighbours.

On two V100s with `fast` 40% batch 8 and `slow` 60% batch 8, the estimator sees two replicas of `fast` on hardware of
their own, `v100/40% beside resnet152_v2/60%/8`. `resnet152_v2` is the model of `slow`.

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
from horologe_planning.joint_planning.layouts import Layout, PlannedDevice, layout_price
from horologe_planning.plan import WHOLE_PERCENT, Placement
from horologe_planning.search.evaluation import Configuration, Evaluator, Forecast

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from horologe_common.interference.prediction import Prediction
    from horologe_common.interference.v100 import GpuCatalogue
    from horologe_planning.profiles import Profiles, StageProfile


class LayoutEvaluator:
    """The planning problem of an `Evaluator`, for layouts in place of configurations."""

    def __init__(
        self, dedicated: Evaluator, times: ShareTimes, on_run: Callable[[int], None] = lambda runs: None
    ) -> None:
        """`on_run` is called with the number of runs of the estimator after each of them."""
        profiles = {model: dict(by_hardware) for model, by_hardware in dedicated.profiles.items()}
        self.problem = Evaluator(dedicated.workload, profiles, dedicated.hardware, dedicated.objective, on_run)
        """The same problem, with a profile for each share that was evaluated."""
        self.times = times
        self.models = {stage.name: stage.model for stage in dedicated.structure.stages}
        self._configurations: dict[Layout, Configuration] = {}

    def price(self, layout: Layout) -> float:
        """Return the dollars per hour."""
        return layout_price(layout, self.problem.hardware)

    def is_feasible(self, layout: Layout) -> bool:
        """Return whether each stage has a share and the layout meets the objective."""
        return self._covers(layout) and self.problem.is_feasible(self.configuration(layout))

    def reached_slo_ns(self, layout: Layout) -> float:
        """Return the shortest SLO with which the layout would meet the objective. Infinite if a stage has no share."""
        return self.problem.reached_slo_ns(self.configuration(layout)) if self._covers(layout) else float("inf")

    def forecast(self, layout: Layout) -> Forecast:
        """Return the result of a complete run on the sample."""
        return self.problem.forecast(self.configuration(layout))

    def configuration(self, layout: Layout) -> Configuration:
        """Return the groups of equal shares of each stage, the fastest first, and add their profiles to the problem."""
        if layout not in self._configurations:
            counts: dict[Placement, int] = {}
            for device in layout:
                for place in range(len(device.shares)):
                    group = self.group_of(device, place)
                    counts[group] = counts.get(group, 0) + 1
            order = {stage: place for place, stage in enumerate(self.models)}
            groups = sorted(counts, key=lambda group: (order[group.stage], -self._throughput(group), group.hardware))
            self._configurations[layout] = tuple(
                Placement(g.stage, g.model, g.hardware, g.max_batch, counts[g]) for g in groups
            )
        return self._configurations[layout]

    def group_of(self, device: PlannedDevice, place: int) -> Placement:
        """Return one replica: the share of a device at `place`. Its profile is added to the problem."""
        stage, percent, batch = device.shares[place]
        model, hardware = self.models[stage], device.hardware
        if not device.is_whole:
            others = [share for other, share in enumerate(device.shares) if other != place]
            beside = sorted((self.models[share.stage], share.percent, share.batch) for share in others)
            hardware = share_name(hardware, percent, beside)
            known = self.problem.profiles[model]
            if hardware not in known:
                known[hardware] = self.times.profile(device.hardware, model, percent, beside)
        return Placement(stage, model, hardware, batch)

    def _throughput(self, group: Placement) -> float:
        return self.problem.profile_of(group).throughput(group.max_batch)

    def _covers(self, layout: Layout) -> bool:
        return {share.stage for device in layout for share in device.shares} == set(self.models)


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
        if percent == WHOLE_PERCENT and not neighbours:
            return whole
        sizes = np.array(whole.batch_sizes, float)
        alone = self._predict(hardware, sizes, (model, WHOLE_PERCENT, 1), ())
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
