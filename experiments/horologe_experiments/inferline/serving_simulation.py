"""A run of the estimator that is stopped to observe it and to change its replicas, and then continued."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from horologe_common.clock import NEVER_NS
from horologe_planning.estimator import estimator_kernel as kernel
from horologe_planning.estimator.estimator import Simulation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from horologe_planning.hardware import HardwareType
    from horologe_planning.plan import Placement


class ServingSimulation(Simulation):
    """A run that can be stopped at any time, changed and continued."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        stages = self.workload.structure.stages
        self.groups = {stage.name: np.flatnonzero(self.stage_of == place) for place, stage in enumerate(stages)}
        """Stage -> its groups of replicas."""
        self._ordered_ns = np.zeros(self.stage_of.size, np.int64)
        """Sum of the times at which replicas were ordered."""
        self._activations: list[tuple[int, int]] = []
        """Heap of (time, group), one for each replica that is not ready yet."""

    def run_until(self, t_ns: int = NEVER_NS) -> None:
        """Process all events before `t_ns`, by default until all queries are complete."""
        while self._activations and self._activations[0][0] <= t_ns and not self.stopped:
            at_ns, group = heapq.heappop(self._activations)
            self._advance(at_ns)
            self._state.replicas[group, (kernel.FREE, kernel.LIVE)] += 1
        self._advance(t_ns)

    def _advance(self, t_ns: int) -> None:
        super()._advance(t_ns)
        if t_ns < NEVER_NS and not self.stopped:
            self._state.counters[kernel.NOW] = max(t_ns, self.now_ns)

    def set_replicas(self, stage: str, count: int, ready_at_ns: int = 0) -> None:
        """Change the replicas of a stage to `count`. New ones start to work at `ready_at_ns`, removed ones stop now.

        The cost counts from now on. Raises ValueError if `count` is negative or the stage has several groups of
        replicas, KeyError for an unknown stage.
        """
        if count < 0:
            raise ValueError(f"replicas of {stage}: got {count}, wanted at least 0")
        if len(self.groups[stage]) != 1:
            raise ValueError(f"stage {stage}: got {len(self.groups[stage])} groups of replicas, wanted one to change")
        group, now_ns = int(self.groups[stage][0]), self.now_ns
        for _ in range(count - self.replicas(stage)):
            self._ordered_ns[group] += now_ns
            heapq.heappush(self._activations, (max(ready_at_ns, now_ns), group))
        for _ in range(self.replicas(stage) - count):
            self._remove_replica(group)

    def _remove_replica(self, group: int) -> None:
        """Remove the replica that would be ready last, else an idle one, else the busy one that is free first."""
        replicas, pending = self._state.replicas[group], [a for a in self._activations if a[1] == group]
        if pending:
            self._activations.remove(max(pending))
            heapq.heapify(self._activations)
            self._state.totals[group, kernel.RELEASED_NS] += self.now_ns
        elif replicas[kernel.FREE] > 0:
            replicas[[kernel.FREE, kernel.LIVE]] -= 1
            self._state.totals[group, kernel.RELEASED_NS] += self.now_ns
        else:
            replicas[kernel.SURPLUS] += 1

    @property
    def finished(self) -> bool:
        """True if every query is complete."""
        return int(self._state.counters[kernel.ANSWERED]) == self.workload.arrivals_ns.size

    @property
    def state(self) -> kernel.State:
        """State of the run, for observers."""
        return self._state

    def replicas(self, stage: str) -> int:
        """Return the replicas of a stage that work or will work. Replicas to be removed do not count."""
        groups = self.groups[stage]
        live, surplus = self._state.replicas[groups, kernel.LIVE], self._state.replicas[groups, kernel.SURPLUS]
        return int((live - surplus).sum()) + sum(pending in groups for _, pending in self._activations)

    def waiting(self, stage: str) -> int:
        """Return the length of a stage's queue."""
        queue = self._state.queues[self._places[stage]]
        return int(queue[kernel.TAIL] - queue[kernel.HEAD])

    def replica_ns(self) -> dict[str, int]:
        """Return the time that has to be paid for by stage: of each replica, from its order to its removal."""
        paid_ns = self.paid_ns()
        return {stage: int(paid_ns[groups].sum()) for stage, groups in self.groups.items()}

    def paid_ns(self) -> NDArray[np.int64]:
        """Return the time that has to be paid for by group: of each replica, from its order to its removal."""
        present = self._state.replicas[:, kernel.LIVE].copy()
        for _, group in self._activations:
            present[group] += 1
        released_ns = self._state.totals[:, kernel.RELEASED_NS]
        return np.asarray(present * self.now_ns + released_ns - self._ordered_ns)

    def cost(self, configurations: Sequence[Placement], hardware: Mapping[str, HardwareType]) -> float:
        """Return the dollars for all replicas from the time 0 until now."""
        prices = [hardware[c.hardware].price_per_hour for c in configurations]
        return float(self.paid_ns() @ np.array(prices)) / 3.6e12


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


def observe_stages(simulation: ServingSimulation) -> dict[str, StageState]:
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


def queries_in_flight(simulation: ServingSimulation) -> int:
    """Return the queries that have arrived and are not complete."""
    counters = simulation.state.counters
    return int(counters[kernel.ARRIVED] - counters[kernel.ANSWERED])
