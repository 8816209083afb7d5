"""Algorithm 1 of InferLine section 4.3: a first feasible configuration, whatever it costs.

Line 6 of the algorithm is printed with the comparison inverted: it must give up if the service time is above the SLO,
as the text says. Here it gives up if even a configuration in which no call waits misses the objective. A pipeline whose
longest path is too long, but is taken by fewer queries than may miss, is therefore planned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_planning.infeasible import Infeasible
from horologe_planning.plan import MAX_REPLICAS, Placement
from horologe_planning.search.evaluation import Configuration, first_true, replace_stage
from horologe_planning.search.objective import percentile_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_planning.search.evaluation import Evaluator


def fastest_hardware(evaluator: Evaluator) -> list[str]:
    """Return the hardware type of each stage that runs one call in the least time. The cheaper of two equal ones."""
    chosen = []
    for stage in evaluator.structure.stages:
        profiles = evaluator.profiles[stage.model]
        types = reversed(evaluator.hardware_of(stage))
        chosen.append(min(types, key=lambda kind: profiles[kind.name].mean_latency_ns(1)).name)
    return chosen


def initialize(evaluator: Evaluator, hardware: Sequence[str]) -> Configuration:
    """Return a feasible configuration with batches of one call on this hardware (one type per stage).

    Replicas are added to the stage with the least throughput, until the objective is met. Raises Infeasible.
    """
    stages = evaluator.structure.stages
    smallest = tuple(Placement(s.name, s.model, kind) for s, kind in zip(stages, hardware, strict=True))
    if not evaluator.is_feasible(evaluator.unlimited(smallest)):
        raise _explain(evaluator, smallest)
    sequence = [smallest]

    def is_enough(added: int) -> bool:
        while len(sequence) <= added:
            sequence.append(_widen_bottleneck(evaluator, sequence[-1]))
        return evaluator.is_feasible(sequence[added])

    if is_enough(0):
        return smallest
    if not (added := first_true(is_enough, 1, MAX_REPLICAS)):
        raise Infeasible(f"{evaluator.structure.name}: needs more than {MAX_REPLICAS} replicas with batches of 1")
    return sequence[added]


def _widen_bottleneck(evaluator: Evaluator, configuration: Configuration) -> Configuration:
    """Return the configuration with one more replica of the stage that carries the fewest queries per second."""
    structure = evaluator.structure

    def queries_per_second(place: int) -> float:
        stage = configuration[place]
        calls = structure.scale_factor(stage.stage)
        throughput = stage.replicas * evaluator.profile_of(stage).throughput(stage.max_batch)
        return throughput / calls if calls else float("inf")

    place = min(range(len(configuration)), key=queries_per_second)
    return replace_stage(configuration, place, replicas=configuration[place].replicas + 1)


def service_path(evaluator: Evaluator, configuration: Configuration) -> tuple[int, list[str]]:
    """Return the time and the stages of the longest path, with full batches and without queueing."""
    longest: dict[str, tuple[float, list[str]]] = {}
    for stage, chosen in zip(evaluator.structure.stages, configuration, strict=True):
        before = max((longest[parent] for parent in stage.parents), default=(0.0, []))
        own_ns = evaluator.profile_of(chosen).mean_latency_ns(chosen.max_batch)
        longest[stage.name] = (before[0] + own_ns, [*before[1], stage.name])
    time_ns, path = max(longest.values())
    return round(time_ns), path


def _explain(evaluator: Evaluator, smallest: Configuration) -> Infeasible:
    """Return the error of a configuration that misses the objective although no call waits."""
    forecast = evaluator.forecast(evaluator.unlimited(smallest))
    objective, chosen = evaluator.objective, {stage.stage: stage for stage in smallest}
    parts = []
    for name in service_path(evaluator, smallest)[1]:
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
