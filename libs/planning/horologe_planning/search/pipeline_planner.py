"""The planner: algorithms 1 and 2 of InferLine, from the fastest hardware and from other promising starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_planning.envelope import envelope_of, window_lengths
from horologe_planning.infeasible import Infeasible
from horologe_planning.plan import Plan
from horologe_planning.report import Alternative, PlanReport, ReportedPlan
from horologe_planning.search.bounds import assignments, isolated_bounds
from horologe_planning.search.evaluation import replace_stage
from horologe_planning.search.exchange import exchange_replicas, improve
from horologe_planning.search.growth import batches_for_growth
from horologe_planning.search.initialization import fastest_hardware, initialize, service_path
from horologe_planning.search.minimization import CENT, cheaper_action, minimize_cost, removals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_planning.search.evaluation import Configuration, Evaluator

RESTARTS = 12
"""Starts from other hardware."""


def make_plan(evaluator: Evaluator) -> ReportedPlan:
    """Return the cheapest plan that the search finds. Raises Infeasible if no configuration meets the objective.

    A stage may move to any hardware type, and replicas may be exchanged. The search starts on the fastest hardware, and
    on the combinations of hardware with the lowest bounds of cost.
    """
    first = minimize_cost(evaluator, initialize(evaluator, fastest_hardware(evaluator)))
    found = [first, improve(evaluator, first)]
    bound = _restart(evaluator, found)
    best = min(reversed(found), key=evaluator.price)  # of equal ones the one from which no action leads on
    return describe_plan(evaluator, _with_room(evaluator, best), found, bound)


def _with_room(evaluator: Evaluator, configuration: Configuration) -> Configuration:
    """Return the configuration with batches for growth. If they make a cheaper one possible, continue from that one."""
    while True:
        configuration = batches_for_growth(evaluator, configuration)
        cheaper = cheaper_action(evaluator, configuration) or exchange_replicas(evaluator, configuration)
        if cheaper is None:
            return configuration
        configuration = improve(evaluator, cheaper)


def _restart(evaluator: Evaluator, found: list[Configuration]) -> float:
    """Append the results of each start that may be cheaper than all found: on its hardware, and after moves from it.

    At least one start is on other hardware than the best, so that there is a runner-up. Return the lower bound of the
    cost.
    """
    least = 0.0
    for number, (bound, kinds) in enumerate(assignments(isolated_bounds(evaluator))):
        least = least or bound
        compared = len({tuple(stage.hardware for stage in other) for other in found}) > 1
        if number >= RESTARTS or (compared and bound >= min(map(evaluator.price, found)) - CENT):
            break
        try:
            found.append(minimize_cost(evaluator, initialize(evaluator, kinds), can_move=False))
            found.append(improve(evaluator, minimize_cost(evaluator, found[-1])))
        except Infeasible:
            continue
    return least


def describe_plan(
    evaluator: Evaluator, best: Configuration, found: Sequence[Configuration] = (), bound: float = 0.0
) -> ReportedPlan:
    """Return the plan of a configuration with its forecast. `found`: all results of the search, for the runner-up."""
    forecast = evaluator.forecast(best)
    report = PlanReport(
        cost_per_hour=evaluator.price(best),
        p99_ns=forecast.p99_ns,
        attainment=forecast.attainment,
        attainment_bound=1 - forecast.missed_bound,
        utilisation={load.stage: load.utilisation for load in forecast.loads},
        cost_bound=bound,
        runner_up=_runner_up(evaluator, best, found),
        rejected=_rejected(evaluator, best),
        evaluations=evaluator.runs,
    )
    return ReportedPlan(_plan_of(evaluator, best), report)


def _plan_of(evaluator: Evaluator, configuration: Configuration) -> Plan:
    """Return the plan of a configuration, with the envelope of the sample trace and the figures of each stage."""
    for place, placed in enumerate(configuration):
        throughput = evaluator.profile_of(placed).throughput(placed.max_batch)
        factor = evaluator.structure.scale_factor(placed.stage)
        configuration = replace_stage(configuration, place, throughput=throughput, scale_factor=factor)
    work = evaluator.workload
    envelope = envelope_of(work.arrivals_ns, window_lengths(service_path(evaluator, configuration)[0]))
    return Plan(evaluator.structure.name, evaluator.objective.slo_ns, work.rate, configuration, envelope)


def _runner_up(evaluator: Evaluator, best: Configuration, found: Sequence[Configuration]) -> Alternative | None:
    """Return the cheapest configuration found on other hardware."""
    kinds = [stage.hardware for stage in best]
    others = [other for other in found if [stage.hardware for stage in other] != kinds]
    if not others:
        return None
    other = min(others, key=evaluator.price)
    more = evaluator.price(other) - evaluator.price(best)
    reason = f"it costs {more:.3f} dollars per hour more ({more / evaluator.price(best):.1%})"
    return Alternative(other, evaluator.price(other), reason)


def _rejected(evaluator: Evaluator, best: Configuration) -> Alternative | None:
    """Return the configuration with one replica less that would save most, and its forecast."""
    fewer = min(removals(best), key=evaluator.price, default=None)
    if fewer is None:
        return None
    forecast, objective = evaluator.forecast(fewer), evaluator.objective
    saved = evaluator.price(best) - evaluator.price(fewer)
    reason = (
        f"it costs {saved:.3f} dollars per hour less, but has a P99 of {forecast.p99_ns / 1e6:.1f} ms: "
        f"{1 - forecast.attainment:.2%} of the queries miss the SLO, on unseen traffic up to "
        f"{min(1.0, forecast.missed_bound):.2%}; {1 - objective.attainment:.2%} may"
    )
    return Alternative(fewer, evaluator.price(fewer), reason)
