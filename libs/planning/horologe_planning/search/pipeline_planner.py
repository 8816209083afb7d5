"""The planner: the cheapest plan of a pipeline on whole devices, and the report on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_planning.envelope import envelope_of, window_lengths
from horologe_planning.plan import MAX_REPLICAS, Plan
from horologe_planning.report import Alternative, Infeasible, PlanReport, ReportedPlan
from horologe_planning.search.cheapest_first import RUNS_LIMIT, search_cheapest
from horologe_planning.search.evaluation import replace_stage
from horologe_planning.search.higher_rates import batches_for_growth
from horologe_planning.search.objective import percentile_ns
from horologe_planning.search.whole_devices import (
    WholeDevices,
    enlarge,
    frictionless,
    isolated_bounds,
    removals,
    without_spare_replicas,
)

if TYPE_CHECKING:
    from horologe_planning.search.evaluation import Configuration, Evaluator

QUERIES_LIMIT = 60_000_000
"""Queries of the sample, times the runs of the estimator: half a minute of CPU time. Long samples have fewer runs, so
that a search may end with a dearer plan."""


def make_plan(evaluator: Evaluator) -> ReportedPlan:
    """Return the cheapest plan that the search finds, without levels; see `with_levels`.

    Raises Infeasible if no configuration meets the objective.
    """
    bound = sum(min(least.values(), default=0.0) for least in isolated_bounds(evaluator))
    best = _cheapest(evaluator)
    if best is None:
        raise _explain(evaluator)
    best = batches_for_growth(evaluator, best)
    other = search_cheapest(WholeDevices(evaluator, other_than=best), runs_limit(evaluator)).cheapest
    return describe_plan(evaluator, best, other, bound)


def runs_limit(evaluator: Evaluator) -> int:
    """Return the limit of the estimator's runs for a search."""
    return min(RUNS_LIMIT, QUERIES_LIMIT // evaluator.workload.arrivals_ns.size)


def _cheapest(evaluator: Evaluator) -> Configuration | None:
    """Return the cheapest configuration found, by a quick search, and a thorough one for what costs less.

    A quick search that ends at its limit goes on from what was next.
    """
    space, limit = WholeDevices(evaluator), runs_limit(evaluator)
    result = search_cheapest(space, limit)
    found = result.cheapest if result.following is None else enlarge(space, result.following)
    if found is None:
        return None
    found = without_spare_replicas(evaluator, found)
    cheaper = search_cheapest(WholeDevices(evaluator, thorough=True), limit, evaluator.price(found)).cheapest
    return found if cheaper is None else without_spare_replicas(evaluator, cheaper)


def describe_plan(
    evaluator: Evaluator, best: Configuration, other: Configuration | None = None, bound: float = 0.0
) -> ReportedPlan:
    """Return the plan of a configuration with its forecast. `other`: the cheapest one on other hardware."""
    forecast = evaluator.forecast(best)
    report = PlanReport(
        cost_per_hour=evaluator.price(best),
        p99_ns=forecast.p99_ns,
        attainment=forecast.attainment,
        attainment_bound=1 - forecast.missed_bound,
        utilisation={load.stage: load.utilisation for load in forecast.loads},
        cost_bound=bound,
        runner_up=_runner_up(evaluator, best, other),
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
    envelope = envelope_of(work.arrivals_ns, window_lengths(_service_path(evaluator, configuration)[0]))
    return Plan(evaluator.structure.name, evaluator.objective.slo_ns, work.rate, configuration, envelope)


def _runner_up(evaluator: Evaluator, best: Configuration, other: Configuration | None) -> Alternative | None:
    if other is None:
        return None
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


def _service_path(evaluator: Evaluator, configuration: Configuration) -> tuple[int, list[str]]:
    """Return the time and the stages of the longest path, with full batches and without queueing."""
    longest: dict[str, tuple[float, list[str]]] = {}
    for stage, chosen in zip(evaluator.structure.stages, configuration, strict=True):
        before = max((longest[parent] for parent in stage.parents), default=(0.0, []))
        own_ns = evaluator.profile_of(chosen).mean_latency_ns(chosen.max_batch)
        longest[stage.name] = (before[0] + own_ns, [*before[1], stage.name])
    time_ns, path = max(longest.values())
    return round(time_ns), path


def _explain(evaluator: Evaluator) -> Infeasible:
    fastest = frictionless(evaluator)
    if evaluator.is_feasible(fastest):
        return Infeasible(f"{evaluator.structure.name}: needs more than {MAX_REPLICAS} replicas of a stage")
    forecast = evaluator.forecast(fastest)
    objective, chosen = evaluator.objective, {stage.stage: stage for stage in fastest}
    parts = []
    for name in _service_path(evaluator, fastest)[1]:
        time_ms = evaluator.profile_of(chosen[name]).mean_latency_ns(1) / 1e6
        parts.append(f"{name} {time_ms:.3g} ms on {chosen[name].hardware}")
    nearest_ns = objective.nearest_slo_ns(forecast.latencies_ns)
    percentile = percentile_ns(forecast.latencies_ns, objective.attainment) / 1e6
    return Infeasible(
        f"{evaluator.structure.name}: an SLO of {objective.slo_ns / 1e6:g} ms cannot be met. Without any waiting, "
        f"{objective.attainment:.4g} of the queries take up to {percentile:.3g} ms. Longest path: {', '.join(parts)}. "
        f"Nearest feasible SLO: {nearest_ns / 1e6:.4g} ms",
        nearest_ns,
    )
