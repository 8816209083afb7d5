"""Estimator: simulates a pipeline of batched queues, event by event (InferLine section 4.2).

Rules. Times are whole nanoseconds, and one seed gives one result.

1. The stages that a query visits and its number of calls are drawn before the run, see `draw_calls`. A configuration
   does not change them, so two configurations are compared on the same queries.
2. A stage has one queue, first in first out. It starts for a query when all its visited parents are complete, and is
   complete when all its calls are answered. All calls of a query join the queue at once.
3. A free replica takes min(largest batch, queue length) calls from the front, and never waits for more. The batch takes
   the time of the profile for its size, and all its calls are answered at its end.
4. A query is complete when all stages that it visits are. Its latency is the time from its arrival.
5. At each instant, first the batches that end there are finished in the order of their starts, then queries arrive in
   the order of the trace, then replicas take batches, stages in the order of the structure.
6. Changes of replicas take effect before the events of their instant. A busy replica that is removed finishes its
   batch.
"""

from __future__ import annotations

import copy
import heapq
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from horologe_common.clock import NEVER_NS
from horologe_tuner.core import estimator_kernel as kernel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from horologe_common.pipelines import PipelineStructure
    from horologe_tuner.core.hardware import HardwareType
    from horologe_tuner.core.plans import StageConfiguration
    from horologe_tuner.core.profiles import Profiles

CALLS_LIMIT = 10_000
"""Calls of one query to one stage."""
QUERIES_LIMIT = 1 << 31
IN_FLIGHT = 256
"""Running batches that a simulation has room for at first. The room is doubled when it is full."""


def draw_calls(structure: PipelineStructure, queries: int, seed: int = 0) -> NDArray[np.int16]:
    """Return the calls of each query to each stage, (queries, stages). 0: the query does not visit the stage.

    A visit has the whole part of the mean fan-out as calls, and one more with the probability of the rest.
    """
    rng = np.random.default_rng(seed)
    places = {stage.name: place for place, stage in enumerate(structure.stages)}
    calls = np.zeros((queries, len(places)), np.int16)
    for place, stage in enumerate(structure.stages):
        visited, more = rng.random(queries) < stage.visits, rng.random(queries)
        if stage.parents:
            visited &= (calls[:, [places[parent] for parent in stage.parents]] > 0).any(axis=1)
        whole = int(stage.fan_out)
        calls[:, place] = np.where(visited, whole + (more < stage.fan_out - whole), 0)
    return calls


class Workload:
    """A trace with the drawn calls of its queries: what all configurations of a pipeline are compared on."""

    def __init__(
        self, structure: PipelineStructure, arrivals_ns: ArrayLike, seed: int = 0, calls: ArrayLike | None = None
    ) -> None:
        """Raise ValueError for an invalid structure, and for a trace that is empty, negative or not in order.

        `calls` (queries, stages) replaces the drawn calls, for example by those of recorded queries.
        """
        structure.validate()
        for number, stage in enumerate(structure.stages):
            if stage.fan_out > CALLS_LIMIT:
                raise ValueError(f"stages[{number}].fan_out: got {stage.fan_out}, wanted at most {CALLS_LIMIT}")
        self.structure, self.seed = structure, seed
        self.arrivals_ns = check_arrivals(arrivals_ns)
        count = self.arrivals_ns.size
        self.calls = draw_calls(structure, count, seed) if calls is None else np.array(calls, np.int16)
        if self.calls.shape != (count, len(structure.stages)):
            raise ValueError(f"calls: got shape {self.calls.shape}, wanted {(count, len(structure.stages))}")
        visited = self.calls > 0
        places = {stage.name: place for place, stage in enumerate(structure.stages)}
        parents = [[places[parent] for parent in stage.parents] for stage in structure.stages]
        self.parents = np.stack([visited[:, above].sum(axis=1) for above in parents], axis=1).astype(np.int16)
        self.open_stages = visited.sum(axis=1).astype(np.int16)
        children = [[child for child, above in enumerate(parents) if place in above] for place in range(len(parents))]
        self.first_child = np.cumsum([0, *map(len, children)])
        self.children = np.array([child for below in children for child in below], np.int64)
        self.queue_starts = np.cumsum([0, *self.calls.sum(axis=0, dtype=np.int64)])

    def at_rate(self, factor: float) -> Workload:
        """Return the same queries, `factor` times as fast."""
        faster = copy.copy(self)
        faster.arrivals_ns = (self.arrivals_ns / factor).astype(np.int64)
        return faster

    @property
    def rate(self) -> float:
        """Mean queries per second."""
        span_ns = int(self.arrivals_ns[-1] - self.arrivals_ns[0])
        return (self.arrivals_ns.size - 1) * 1e9 / span_ns if span_ns else float(self.arrivals_ns.size)


def check_arrivals(arrivals_ns: ArrayLike) -> NDArray[np.int64]:
    """Return the trace as int64 (queries,). Raise ValueError if it is empty, negative or not in order."""
    arrivals = np.ascontiguousarray(arrivals_ns, np.int64)
    if arrivals.ndim != 1 or not 0 < arrivals.size < QUERIES_LIMIT:
        raise ValueError(f"arrivals_ns: got shape {arrivals.shape}, wanted (queries,) with at least one")
    if arrivals[0] < 0:
        raise ValueError(f"arrivals_ns: got {arrivals[0]}, wanted at least 0")
    if (falls := np.flatnonzero(np.diff(arrivals) < 0)).size:
        place = int(falls[0])
        raise ValueError(f"arrivals_ns: got {arrivals[place + 1]} after {arrivals[place]}, wanted them in order")
    return arrivals


class StageLoad(NamedTuple):
    """What a stage did in a run."""

    stage: str
    calls: int
    mean_batch: float
    utilisation: float
    """Part of the replicas' time that they were busy."""
    longest_queue: int


class Simulation:
    """A run of one configuration that can be stopped at any time, changed and continued."""

    def __init__(
        self,
        structure: PipelineStructure | Workload,
        profiles: Profiles,
        configurations: Sequence[StageConfiguration],
        arrivals_ns: ArrayLike = (),
        seed: int = 0,
        slo_ns: int = 0,
        missed_limit: int = NEVER_NS,
    ) -> None:
        """Raise ValueError for an invalid trace, configuration or profile.

        `structure`: a structure with `arrivals_ns` and `seed`, or a workload made from them. `slo_ns`: by default the
        pipeline's. The run ends early as soon as more than `missed_limit` queries have missed it.
        """
        work = structure if isinstance(structure, Workload) else Workload(structure, arrivals_ns, seed)
        self.workload = work
        self._places = {stage.name: place for place, stage in enumerate(work.structure.stages)}
        check_configuration(work.structure, profiles, configurations)
        tables = [profiles[c.model][c.hardware].latency_table(c.batch) for c in configurations]
        shape = (len(tables), *(max(table.shape[axis] for table in tables) for axis in (0, 1)))
        latency_ns = np.zeros(shape, np.int64)
        for place, table in enumerate(tables):
            latency_ns[place, : table.shape[0], : table.shape[1]] = table
        self._problem = kernel.Problem(
            work.arrivals_ns, work.calls, work.first_child, work.children,
            np.array([c.batch for c in configurations]), latency_ns, np.array([table.shape[1] for table in tables]),
            np.uint64(work.seed), slo_ns or work.structure.slo_ns, missed_limit,
        )  # fmt: skip
        self._state = _initial_state(work, [c.replicas for c in configurations])
        self._ordered_ns = np.zeros(len(tables), np.int64)
        """Sum of the times at which replicas were ordered."""
        self._activations: list[tuple[int, int]] = []
        """Heap of (time, stage), one for each replica that is not ready yet."""
        self.stopped = False
        """Whether the run ended early."""

    def run_until(self, t_ns: int = NEVER_NS) -> None:
        """Process all events before `t_ns`, by default until all queries are complete."""
        while self._activations and self._activations[0][0] <= t_ns and not self.stopped:
            at_ns, stage = heapq.heappop(self._activations)
            self._advance(at_ns)
            self._state.replicas[stage, (kernel.FREE, kernel.LIVE)] += 1
        self._advance(t_ns)

    def _advance(self, t_ns: int) -> None:
        state = self._state
        while not self.stopped and (result := kernel.advance(self._problem, state, t_ns)) != kernel.REACHED:
            self.stopped = result == kernel.STOPPED
            if result == kernel.FULL:
                state = state._replace(batches=np.concatenate((state.batches, np.zeros_like(state.batches))))
        self._state = state
        if t_ns < NEVER_NS and not self.stopped:
            state.counters[kernel.NOW] = max(t_ns, self.now_ns)

    def set_replicas(self, stage: str, count: int, ready_at_ns: int = 0) -> None:
        """Change the replicas of a stage to `count`. New ones start to work at `ready_at_ns`, removed ones stop now.

        The cost counts from now on. Raises ValueError if `count` is negative, KeyError for an unknown stage.
        """
        if count < 0:
            raise ValueError(f"replicas of {stage}: got {count}, wanted at least 0")
        place, now_ns = self._places[stage], self.now_ns
        for _ in range(count - self.replicas(stage)):
            self._ordered_ns[place] += now_ns
            heapq.heappush(self._activations, (max(ready_at_ns, now_ns), place))
        for _ in range(self.replicas(stage) - count):
            self._remove_replica(place)

    def _remove_replica(self, place: int) -> None:
        """Remove the replica that would be ready last, else an idle one, else the busy one that is free first."""
        replicas, pending = self._state.replicas[place], [a for a in self._activations if a[1] == place]
        if pending:
            self._activations.remove(max(pending))
            heapq.heapify(self._activations)
            self._state.totals[place, kernel.RELEASED_NS] += self.now_ns
        elif replicas[kernel.FREE] > 0:
            replicas[[kernel.FREE, kernel.LIVE]] -= 1
            self._state.totals[place, kernel.RELEASED_NS] += self.now_ns
        else:
            replicas[kernel.SURPLUS] += 1

    @property
    def now_ns(self) -> int:
        """Time up to which events are processed."""
        return int(self._state.counters[kernel.NOW])

    @property
    def finished(self) -> bool:
        """Whether every query is complete."""
        return int(self._state.counters[kernel.ANSWERED]) == self.workload.arrivals_ns.size

    @property
    def latencies_ns(self) -> NDArray[np.int64]:
        """Latency of each query, in the order of the trace. -1: not complete."""
        return self._state.latency_ns.copy()

    @property
    def state(self) -> kernel.State:
        """State of the run, for observers."""
        return self._state

    def replicas(self, stage: str) -> int:
        """Return the replicas of a stage that work or will work. Replicas to be removed do not count."""
        place = self._places[stage]
        live, surplus = self._state.replicas[place, kernel.LIVE], self._state.replicas[place, kernel.SURPLUS]
        return int(live - surplus) + sum(pending == place for _, pending in self._activations)

    def waiting(self, stage: str) -> int:
        """Return the length of a stage's queue."""
        queue = self._state.queues[self._places[stage]]
        return int(queue[kernel.TAIL] - queue[kernel.HEAD])

    def replica_ns(self) -> dict[str, int]:
        """Return the time that has to be paid for by stage: of each replica, from its order to its removal."""
        now_ns, paid = self.now_ns, {}
        for stage, place in self._places.items():
            pending = sum(1 for _, waiting in self._activations if waiting == place)
            present = int(self._state.replicas[place, kernel.LIVE]) + pending
            released_ns = int(self._state.totals[place, kernel.RELEASED_NS])
            paid[stage] = present * now_ns + released_ns - int(self._ordered_ns[place])
        return paid

    def cost(self, configurations: Sequence[StageConfiguration], hardware: Mapping[str, HardwareType]) -> float:
        """Return the dollars for all replicas from the time 0 until now."""
        paid = self.replica_ns()
        return sum(paid[c.stage] / 3.6e12 * hardware[c.hardware].price_per_hour for c in configurations)

    def loads(self) -> list[StageLoad]:
        """Return what each stage did so far."""
        paid, loads = self.replica_ns(), []
        for stage, place in self._places.items():
            batches, calls, busy_ns, _ = self._state.totals[place].tolist()
            used = busy_ns / paid[stage] if paid[stage] else 0.0
            longest = int(self._state.queues[place, kernel.LONGEST])
            loads.append(StageLoad(stage, calls, calls / max(batches, 1), used, longest))
        return loads


def check_configuration(
    structure: PipelineStructure, profiles: Profiles, configurations: Sequence[StageConfiguration]
) -> None:
    """Raise ValueError unless there is a valid configuration with a profile for each stage, in order."""
    wanted, given = [stage.name for stage in structure.stages], [c.stage for c in configurations]
    if given != wanted:
        raise ValueError(f"configurations: got stages {', '.join(given)}, wanted {', '.join(wanted)}")
    for c in configurations:
        if c.model not in profiles:
            raise ValueError(f"stage {c.stage}: no profile of the model {c.model!r}, wanted {', '.join(profiles)}")
        if c.hardware not in profiles[c.model]:
            known = ", ".join(profiles[c.model])
            raise ValueError(f"stage {c.stage}: no profile of {c.model} on {c.hardware!r}, wanted {known}")
        if c.replicas < 0:
            raise ValueError(f"stage {c.stage}: replicas: got {c.replicas}, wanted at least 0")


def _initial_state(work: Workload, replicas: Sequence[int]) -> kernel.State:
    count, stages = work.calls.shape
    queues, present = np.zeros((stages, 3), np.int64), np.zeros((stages, 3), np.int64)
    queues[:, kernel.HEAD] = queues[:, kernel.TAIL] = work.queue_starts[:-1]
    present[:, kernel.FREE] = present[:, kernel.LIVE] = replicas
    return kernel.State(
        counters=np.zeros(6, np.int64),
        parents=work.parents.copy(),
        unanswered=work.calls.copy(),
        open_stages=work.open_stages.copy(),
        latency_ns=np.full(count, -1, np.int64),
        queue=np.zeros(int(work.queue_starts[-1]), np.int64),
        queues=queues,
        replicas=present,
        totals=np.zeros((stages, 4), np.int64),
        batches=np.zeros((IN_FLIGHT, 5), np.int64),
    )
