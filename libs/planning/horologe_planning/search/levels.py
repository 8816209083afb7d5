"""Provisioning levels of a plan: the fewest replicas for multiples of its rate, on the planned hardware and batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_planning.plan import MAX_REPLICAS, ProvisioningLevel
from horologe_planning.search.evaluation import replace_stage
from horologe_planning.search.growth import faster_problem

if TYPE_CHECKING:
    from horologe_planning.plan import Plan
    from horologe_planning.search.evaluation import Configuration, Evaluator

STEP = 1.05
"""Ratio of the factors of two levels. With 1.2, traffic that exceeds the sample by chance gets replicas for a fifth
more: the first of July of experiments/results/inferline.md then costs 14% more."""
FACTORS = tuple(STEP**power for power in range(-30, 31))
"""From 0.23 to 4.3 times the rate of the sample."""


def with_levels(plan: Plan, evaluator: Evaluator) -> Plan:
    """Return the plan with its provisioning levels, which the tuner follows instead of provisioning ratios."""
    return msgspec.structs.replace(plan, levels=provisioning_levels(evaluator, plan.placements))


def provisioning_levels(evaluator: Evaluator, configuration: Configuration) -> tuple[ProvisioningLevel, ...]:
    """Return the levels of a configuration, without those that cannot be reached by adding replicas.

    The sample is compressed in time by each factor, so that its bursts become denser as well. Replicas never fall from
    one level to the next, although the estimator may find fewer: a batch that starts later is larger.
    """
    levels: list[ProvisioningLevel] = []
    least = tuple(msgspec.structs.replace(stage, replicas=1) for stage in configuration)
    for factor in FACTORS:
        found = _fewest(faster_problem(evaluator, factor), least)
        if found is None:
            break
        least = found
        levels.append(ProvisioningLevel(factor, tuple(stage.replicas for stage in found)))
    return tuple(levels)


def _fewest(evaluator: Evaluator, least: Configuration) -> Configuration | None:
    """Return a cheap feasible configuration with at least the replicas of `least`; None if there is none."""
    upper = least
    while not evaluator.is_feasible(upper):
        upper = tuple(msgspec.structs.replace(stage, replicas=1 + stage.replicas * 5 // 4) for stage in upper)
        if max(stage.replicas for stage in upper) > MAX_REPLICAS:
            return None
    places = sorted(range(len(least)), key=lambda place: -evaluator.price(least[place : place + 1]))
    for place in places:
        count = upper[place].replicas
        while count > least[place].replicas:
            fewer = replace_stage(upper, place, replicas=count - 1)
            if not evaluator.is_feasible(fewer):
                break
            upper, count = fewer, count - 1
    return upper
