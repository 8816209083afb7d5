"""Evaluates layouts with the estimator: each share is a group of replicas with the times beside its neighbours.

On two V100s with `fast` 40% batch 8 and `slow` 60% batch 8, the estimator sees two replicas of `fast` on hardware of
their own, `v100/40% beside resnet152_v2/60%/8`. `resnet152_v2` is the model of `slow`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_planning.joint_planning.layouts import Layout, PlannedDevice, layout_price
from horologe_planning.joint_planning.share_times import share_name
from horologe_planning.plan import Placement
from horologe_planning.search.evaluation import Configuration, Evaluator, Forecast

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_planning.joint_planning.share_times import ShareTimes


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
