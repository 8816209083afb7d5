"""Estimator: simulates a pipeline of batched queues, event by event (InferLine section 4.2).

Rules. Times are whole nanoseconds, and one seed gives one result.

1. The stages that a query visits and its number of calls are drawn before the run, see `draw_calls`. A configuration
   does not change them, so two configurations are compared on the same queries.
2. A stage has one queue, first in first out. It starts for a query when all its visited parents are complete, and is
   complete when all its calls are answered. All calls of a query join the queue at once.
3. A free replica takes min(largest batch, queue length) calls from the front, and never waits for more. The batch takes
   the time of the profile for its size, and all its calls are answered at its end. A stage may have several groups of
   replicas, on different hardware. Of several free replicas, those of the group that is listed first take first.
4. A query is complete when all stages that it visits are. Its latency is the time from its arrival.
5. At each instant, first the batches that end there are finished in the order of their starts, then queries arrive in
   the order of the trace, then replicas take batches, stages in the order of the structure.
6. Replicas may be changed during a run, by experiments. Changes take effect before the events of their instant. A busy
   replica that is removed finishes its batch.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from horologe_common.clock import NEVER_NS
from horologe_planning.estimator import estimator_kernel as kernel
from horologe_planning.estimator.pipeline_workload import PipelineTrace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from horologe_common.pipelines import PipelineStructure
    from horologe_planning.plan import Placement
    from horologe_planning.profiles import Profiles

IN_FLIGHT = 256
"""Running batches that a simulation has room for at first. The room is doubled when it is full."""


class StageLoad(NamedTuple):
    """Work of a group of replicas in a run."""

    stage: str
    calls: int
    mean_batch: float
    utilisation: float
    """Part of the replicas' time that they were busy."""
    longest_queue: int
    """Of the stage."""


class Simulation:
    """A run of one configuration."""

    def __init__(
        self,
        work: PipelineTrace,
        profiles: Profiles,
        configurations: Sequence[Placement],
        slo_ns: int = 0,
        missed_limit: int = NEVER_NS,
    ) -> None:
        """Raise ValueError for an invalid configuration or profile.

        `slo_ns`: by default the pipeline's. The run ends early as soon as more than `missed_limit` queries have missed
        it.
        """
        self.workload = work
        self._places = {stage.name: place for place, stage in enumerate(work.structure.stages)}
        check_configuration(work.structure, profiles, configurations)
        self.stage_of = np.array([self._places[c.stage] for c in configurations])
        """(groups,): place of the stage of each group of replicas."""
        tables = [profiles[c.model][c.hardware].latency_table(c.max_batch) for c in configurations]
        shape = (len(tables), *(max(table.shape[axis] for table in tables) for axis in (0, 1)))
        latency_ns, ranks = np.zeros(shape, np.int64), np.ones(len(self._places), np.int64)
        for group, table in enumerate(tables):
            latency_ns[group, : table.shape[0]] = table
            ranks[self.stage_of[group]] = max(ranks[self.stage_of[group]], table.shape[1])
        self._problem = kernel.Problem(
            work.arrivals_ns,
            work.calls,
            work.first_child,
            work.children,
            self.stage_of,
            np.array([c.max_batch for c in configurations]),
            latency_ns,
            ranks,
            np.uint64(work.seed),
            slo_ns or work.structure.slo_ns,
            missed_limit,
        )
        self._state = _initial_state(work, [c.replicas for c in configurations])
        self.stopped = False
        """True if the run ended early."""

    def run(self) -> None:
        """Process all events, until all queries are complete or too many have missed the SLO."""
        self._advance(NEVER_NS)

    def _advance(self, t_ns: int) -> None:
        state = self._state
        while not self.stopped and (result := kernel.advance(self._problem, state, t_ns)) != kernel.REACHED:
            self.stopped = result == kernel.STOPPED
            if result == kernel.FULL:
                state = state._replace(batches=np.concatenate((state.batches, np.zeros_like(state.batches))))
        self._state = state

    @property
    def now_ns(self) -> int:
        """Time up to which events are processed."""
        return int(self._state.counters[kernel.NOW])

    @property
    def latencies_ns(self) -> NDArray[np.int64]:
        """Latency of each query, in the order of the trace. -1: not complete."""
        return self._state.latency_ns.copy()

    def paid_ns(self) -> NDArray[np.int64]:
        """Return the time of the replicas of each group."""
        return np.asarray(self._state.replicas[:, kernel.LIVE] * self.now_ns)

    def loads(self) -> list[StageLoad]:
        """Return what each group of replicas did so far, in the order of the configuration."""
        loads = []
        names = list(self._places)
        for place, totals, paid_ns in zip(self.stage_of, self._state.totals.tolist(), self.paid_ns(), strict=True):
            batches, calls, busy_ns, _ = totals
            used = busy_ns / int(paid_ns) if paid_ns else 0.0
            longest = int(self._state.queues[place, kernel.LONGEST])
            loads.append(StageLoad(names[place], calls, calls / max(batches, 1), used, longest))
        return loads


def check_configuration(structure: PipelineStructure, profiles: Profiles, configurations: Sequence[Placement]) -> None:
    """Raise ValueError unless each stage, in order, has valid groups of replicas, each with a profile."""
    wanted, given = [stage.name for stage in structure.stages], [c.stage for c in configurations]
    if [name for name, _ in groupby(given)] != wanted:
        raise ValueError(f"configurations: got stages {', '.join(given)}, wanted {', '.join(wanted)}")
    for c in configurations:
        if c.model not in profiles:
            raise ValueError(f"stage {c.stage}: no profile of the model {c.model!r}, wanted {', '.join(profiles)}")
        if c.hardware not in profiles[c.model]:
            known = ", ".join(profiles[c.model])
            raise ValueError(f"stage {c.stage}: no profile of {c.model} on {c.hardware!r}, wanted {known}")
        if c.replicas < 0:
            raise ValueError(f"stage {c.stage}: replicas: got {c.replicas}, wanted at least 0")


def _initial_state(work: PipelineTrace, replicas: Sequence[int]) -> kernel.State:
    count, stages = work.calls.shape
    queues, present = np.zeros((stages, 3), np.int64), np.zeros((len(replicas), 3), np.int64)
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
        totals=np.zeros((len(replicas), 4), np.int64),
        batches=np.zeros((IN_FLIGHT, 5), np.int64),
    )
