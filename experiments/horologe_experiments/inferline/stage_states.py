"""Observation of a simulation in progress, for policies that change its replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from horologe_planning.estimator import estimator_kernel as kernel

if TYPE_CHECKING:
    from horologe_planning.estimator.estimator import Simulation


class StageState(NamedTuple):
    """A stage at one moment of a run. `calls` and `busy_ns` add up since the start; a batch counts when it starts."""

    ordered: int
    """Replicas that work or will work."""
    ready: int
    """Replicas that work, and those that stop at the end of their batch."""
    waiting: int
    """Calls in the queue."""
    running: int
    """Calls in batches that have not ended."""
    calls: int
    busy_ns: int


def observe_stages(simulation: Simulation) -> dict[str, StageState]:
    """Return the present state of each stage."""
    state, stages = simulation.state, simulation.workload.structure.stages
    running = [0] * len(stages)
    for batch in state.batches[: state.counters[kernel.IN_FLIGHT]].tolist():
        running[simulation.stage_of[batch[kernel.GROUP]]] += batch[kernel.LAST] - batch[kernel.FIRST]
    states = {}
    for place, (stage, calls_running) in enumerate(zip(stages, running, strict=True)):
        groups = simulation.stage_of == place
        _, calls, busy_ns, _ = state.totals[groups].sum(axis=0).tolist()
        ordered, ready = simulation.replicas(stage.name), int(state.replicas[groups, kernel.LIVE].sum())
        states[stage.name] = StageState(ordered, ready, simulation.waiting(stage.name), calls_running, calls, busy_ns)
    return states


def queries_in_flight(simulation: Simulation) -> int:
    """Return the queries that have arrived and are not complete."""
    counters = simulation.state.counters
    return int(counters[kernel.ARRIVED] - counters[kernel.ANSWERED])
