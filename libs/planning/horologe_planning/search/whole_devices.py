"""Whole devices: each replica has one for itself (InferLine section 4.3).

Two stages on `k80` that need 2 and 3 replicas alone, and together miss the SLO of the pipeline, are tried with 3 and 3,
and with 2 and 4 replicas next. What a stage needs alone is a lower bound: all others answer at once.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import msgspec

from horologe_planning.plan import MAX_REPLICAS, Placement
from horologe_planning.search.cheapest_first import take_best_changes
from horologe_planning.search.evaluation import replace_stage

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from horologe_planning.search.evaluation import Configuration, Evaluator


STEPS = 4
"""Replicas more of a stage that a thorough search tries until they bring a gain: one may only move the queue."""
STEP_PART = 50
"""Replicas of a stage that are added by one. Of more, a fiftieth is added."""


class WholeDevices:
    """Configurations of a problem as a `SearchSpace`. All replicas of a stage have one hardware type."""

    def __init__(self, evaluator: Evaluator, other_than: Configuration = (), *, thorough: bool = False) -> None:
        """`other_than`: leave out all configurations on the hardware of this one.

        `thorough`: add up to `STEPS` replicas of a stage, or of all stages of a hardware type, where one alone gains
        nothing, and choose batches before the gain is judged. This takes many times as many runs.
        """
        self._evaluator, self._thorough = evaluator, thorough
        self._excluded = [placed.hardware for placed in other_than]
        self.price = evaluator.price
        self.is_feasible = evaluator.is_feasible
        self.reached_slo_ns = evaluator.reached_slo_ns

    @property
    def runs(self) -> int:
        """Runs of the estimator so far."""
        return self._evaluator.runs

    def starts(self) -> Iterator[Configuration]:
        """Yield the fewest replicas that each stage needs by itself, for each choice of hardware, cheapest first.

        Hardware is left out on which queries are too late although no call waits.
        """
        stages = isolated_stages(self._evaluator)
        for configuration in sorted(product(*(least.values() for least in stages)), key=self.price):
            soonest = self._evaluator.unlimited(with_batches_of_one(configuration))
            kinds = [placed.hardware for placed in configuration]
            if kinds != self._excluded and self.is_feasible(soonest):
                yield configuration

    def improve(self, state: Configuration) -> Configuration:
        """Return the configuration with the batches that meet the shortest SLO; see `choose_batches`.

        Changes of one stage at a time may end too early. If they do not suffice, they are tried from batches of one.
        """
        found = choose_batches(self._evaluator, state)
        if not self.is_feasible(found):
            afresh = choose_batches(self._evaluator, with_batches_of_one(state))
            if self.is_feasible(afresh):
                return afresh
        return found

    def additions(self, state: Configuration) -> list[Configuration]:
        """Return configurations with the fewest replicas more that meet a shorter SLO; else the bottleneck widened."""
        reached_ns = self.reached_slo_ns(state)
        better: list[Configuration] = []
        for group in self._groups(state):
            for steps in range(1, STEPS + 1 if self._thorough else 2):
                wider = tuple(_widen(placed, steps) if place in group else placed for place, placed in enumerate(state))
                judged = choose_batches(self._evaluator, wider) if self._thorough else wider
                if self.reached_slo_ns(judged) < reached_ns:
                    better.append(wider)
                    break
        better = better or [widen_bottleneck(self._evaluator, state)]
        return [wider for wider in better if max(placed.replicas for placed in wider) <= MAX_REPLICAS]

    def _groups(self, state: Configuration) -> list[set[int]]:
        """Return the places of stages that get replicas together. Two that are equally slow gain only together."""
        groups = [{place} for place in range(len(state))]
        if self._thorough:
            kinds = dict.fromkeys(placed.hardware for placed in state)
            groups += [{place for place, placed in enumerate(state) if placed.hardware == kind} for kind in kinds]
        return groups

    def devices(self, state: Configuration) -> Hashable:
        """Return the hardware and the number of replicas of each stage."""
        return tuple((placed.hardware, placed.replicas) for placed in state)


def with_batches_of_one(configuration: Configuration) -> Configuration:
    """Return the configuration with the batches that wait least."""
    return tuple(msgspec.structs.replace(placed, max_batch=1) for placed in configuration)


def choose_batches(evaluator: Evaluator, configuration: Configuration) -> Configuration:
    """Return the configuration with the batches that meet the shortest SLO, one stage changed at a time.

    The time that is left to the SLO serves traffic that the planner has not seen.
    """
    return take_best_changes(
        configuration, [lambda state: with_other_batches(evaluator, state)], evaluator.reached_slo_ns
    )


def widen_bottleneck(evaluator: Evaluator, configuration: Configuration) -> Configuration:
    """Return the configuration with one more replica of the stage that carries the fewest queries per second."""
    structure = evaluator.structure

    def queries_per_second(place: int) -> float:
        stage = configuration[place]
        calls = structure.scale_factor(stage.stage)
        throughput = stage.replicas * evaluator.profile_of(stage).throughput(stage.max_batch)
        return throughput / calls if calls else float("inf")

    place = min(range(len(configuration)), key=queries_per_second)
    return replace_stage(configuration, place, replicas=configuration[place].replicas + 1)


def enlarge(space: WholeDevices, configuration: Configuration) -> Configuration | None:
    """Return a feasible configuration after the additions that gain most for their cost; None if there is none."""
    while not space.is_feasible(configuration):
        reached_ns, price = space.reached_slo_ns(configuration), space.price(configuration)
        improved = [space.improve(wider) for wider in space.additions(configuration)]
        if not improved:
            return None
        gains = [(reached_ns - space.reached_slo_ns(wider)) / (space.price(wider) - price) for wider in improved]
        configuration = improved[gains.index(max(gains))]
    return configuration


def without_spare_replicas(evaluator: Evaluator, configuration: Configuration) -> Configuration:
    """Return the feasible configuration without replicas that it does not need, the dearest first."""
    while True:
        fewer = (
            other for other in sorted(removals(configuration), key=evaluator.price) if evaluator.is_feasible(other)
        )
        if (found := next(fewer, None)) is None:
            return configuration
        configuration = found


def removals(configuration: Configuration) -> Iterator[Configuration]:
    """Yield the configuration with one replica less, for each stage that has several."""
    for place, stage in enumerate(configuration):
        if stage.replicas > 1:
            yield replace_stage(configuration, place, replicas=stage.replicas - 1)


def _widen(placed: Placement, steps: int) -> Placement:
    return msgspec.structs.replace(placed, replicas=placed.replicas + steps * (1 + placed.replicas // STEP_PART))


def with_other_batches(evaluator: Evaluator, configuration: Configuration) -> Iterator[Configuration]:
    """Yield the configuration with another batch size of the profile, for each stage and size."""
    for place, stage in enumerate(configuration):
        for size in evaluator.profile_of(stage).batch_sizes:
            if size != stage.max_batch:
                yield replace_stage(configuration, place, max_batch=size)


def fastest_hardware(evaluator: Evaluator) -> list[str]:
    """Return the hardware type of each stage that runs one call in the least time. The cheaper of two equal ones."""
    chosen = []
    for stage in evaluator.structure.stages:
        profiles = evaluator.profiles[stage.model]
        types = reversed(evaluator.hardware_of(stage))
        chosen.append(min(types, key=lambda kind: profiles[kind.name].mean_latency_ns(1)).name)
    return chosen


def frictionless(evaluator: Evaluator) -> Configuration:
    """Return the configuration with the least latency: the fastest hardware, batches of one, unlimited replicas."""
    kinds = zip(evaluator.structure.stages, fastest_hardware(evaluator), strict=True)
    return evaluator.unlimited(tuple(Placement(stage.name, stage.model, kind) for stage, kind in kinds))


def least_alone(
    evaluator: Evaluator, ideal: Configuration, place: int, kind: str, batch: int, most: int = MAX_REPLICAS
) -> int:
    """Return the fewest replicas of a stage, up to `most`, with which the objective is met. 0: none do.

    All other stages are as in `ideal`, which is `frictionless(evaluator)`.
    """
    return evaluator.least_replicas(replace_stage(ideal, place, hardware=kind, max_batch=batch), place, most)


def isolated_bounds(evaluator: Evaluator) -> list[dict[str, float]]:
    """Return the least dollars per hour of each stage on each hardware type that can meet the objective.

    The sum over the stages is a lower bound for every configuration, as far as a faster stage never delays a query.
    Batches break this rule by small amounts: calls that come earlier may start a smaller batch.
    """
    return [{kind: evaluator.price((least,)) for kind, least in stage.items()} for stage in isolated_stages(evaluator)]


def isolated_stages(evaluator: Evaluator) -> list[dict[str, Placement]]:
    """Return, for each stage and each hardware type that can meet the objective, the configuration of least cost."""
    ideal, stages = frictionless(evaluator), []
    for place, stage in enumerate(evaluator.structure.stages):
        least: dict[str, Placement] = {}
        for kind in evaluator.hardware_of(stage):
            most = MAX_REPLICAS
            for batch in reversed(evaluator.profiles[stage.model][kind.name].batch_sizes):
                if replicas := least_alone(evaluator, ideal, place, kind.name, batch, most):
                    least[kind.name] = Placement(stage.name, stage.model, kind.name, batch, replicas)
                    most = replicas - 1
        stages.append(least)
    return stages
