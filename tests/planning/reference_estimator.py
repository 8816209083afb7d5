"""The rules of the estimator in plain Python, to compare with `horologe_planning.estimator.estimator`."""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.pipelines import PipelineStructure
    from horologe_planning.plan import Placement
    from horologe_planning.profiles import Profiles

MASK = (1 << 64) - 1


class Change(NamedTuple):
    """From `at_ns` on, a stage has `replicas` replicas; new ones work from `ready_ns` on."""

    at_ns: int
    stage: str
    replicas: int
    ready_ns: int


def input_rank(seed: int, query: int, stage: int, call: int, ranks: int) -> int:
    value = (seed + query * 0x9E3779B97F4A7C15 + (stage * 65536 + call + 1) * 0xD1B54A32D192ED03) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return ((value ^ (value >> 31)) >> 40) % ranks


class Group:
    """Equal replicas of a stage."""

    def __init__(self, configuration: Placement, profiles: Profiles) -> None:
        self.batch = configuration.max_batch
        self.table = profiles[configuration.model][configuration.hardware].latency_table(self.batch).tolist()
        self.free = self.live = configuration.replicas
        self.surplus = 0
        self.pending: list[int] = []
        self.paid_ns = 0


class Stage:
    """A queue of (query, rank) and its groups of replicas."""

    def __init__(
        self, name: str, parents: Sequence[str], configurations: Sequence[Placement], profiles: Profiles
    ) -> None:
        self.name, self.parents = name, parents
        self.groups = [Group(chosen, profiles) for chosen in configurations if chosen.stage == name]
        self.ranks = max(len(group.table[0]) for group in self.groups)
        self.queue: deque[tuple[int, int]] = deque()


class Reference:
    """A run of the rules. `latencies_ns` and `paid_ns()` are its results."""

    def __init__(
        self, structure: PipelineStructure, profiles: Profiles, configurations: Sequence[Placement],
        arrivals_ns: Sequence[int], calls: Sequence[Sequence[int]], seed: int, changes: Sequence[Change] = (),
    ) -> None:  # fmt: skip
        self.stages = [Stage(stage.name, stage.parents, configurations, profiles) for stage in structure.stages]
        self.calls = [{stage.name: n for stage, n in zip(self.stages, row, strict=True)} for row in calls]
        self.left = [dict(row) for row in self.calls]
        self.complete = [{name for name, n in row.items() if not n} for row in self.calls]
        self.running: list[tuple[int, int, Stage, Group, list[tuple[int, int]]]] = []
        self.arrivals_ns, self.seed = arrivals_ns, seed
        self.arrivals, self.changes = deque(enumerate(arrivals_ns)), deque(changes)
        self.latencies_ns, self.now_ns, self.number = [-1] * len(arrivals_ns), 0, 0
        while times := self._times():
            self.now_ns = min(times)
            self._step()

    def paid_ns(self) -> dict[str, int]:
        """Return the paid replica time by stage at the last event."""
        return {
            stage.name: sum(g.paid_ns + (g.live + len(g.pending)) * self.now_ns for g in stage.groups)
            for stage in self.stages
        }

    @property
    def _groups(self) -> list[Group]:
        return [group for stage in self.stages for group in stage.groups]

    def _times(self) -> list[int]:
        """Return the times of everything that will happen."""
        times = [at_ns for group in self._groups for at_ns in group.pending]
        times += [change.at_ns for change in self.changes] + [at_ns for _, at_ns in self.arrivals]
        return times + [end_ns for end_ns, *_ in self.running]

    def _step(self) -> None:
        self._activate()
        while self.changes and self.changes[0].at_ns == self.now_ns:
            self._apply(self.changes.popleft())
        self._activate()
        self._take_batches()
        while self.running and self.running[0][0] == self.now_ns:
            self._finish(*heapq.heappop(self.running)[2:])
        while self.arrivals and self.arrivals[0][1] == self.now_ns:
            self._start(self.arrivals.popleft()[0], "")
        self._take_batches()

    def _start(self, query: int, just_complete: str) -> None:
        """Queue the calls of all stages that waited for nothing else. Complete the query if no stage is left."""
        if len(self.complete[query]) == len(self.stages):
            self.latencies_ns[query] = self.now_ns - self.arrivals_ns[query]
        for place, stage in enumerate(self.stages):
            above = [parent for parent in stage.parents if self.calls[query][parent]]
            due = just_complete in above if just_complete else not above
            if due and all(parent in self.complete[query] for parent in above):
                for call in range(self.calls[query][stage.name]):
                    rank = input_rank(self.seed, query, place, call, stage.ranks) if stage.ranks > 1 else 0
                    stage.queue.append((query, rank))

    def _apply(self, change: Change) -> None:
        (group,) = next(stage.groups for stage in self.stages if stage.name == change.stage)
        present = group.live - group.surplus + len(group.pending)
        for _ in range(change.replicas - present):
            group.pending.append(change.ready_ns)
            group.paid_ns -= self.now_ns
        for _ in range(present - change.replicas):
            if group.pending:
                group.pending.remove(max(group.pending))
                group.paid_ns += self.now_ns
            elif group.free:
                group.free, group.live, group.paid_ns = group.free - 1, group.live - 1, group.paid_ns + self.now_ns
            else:
                group.surplus += 1

    def _activate(self) -> None:
        for group in self._groups:
            for at_ns in [at_ns for at_ns in group.pending if at_ns <= self.now_ns]:
                group.pending.remove(at_ns)
                group.free, group.live = group.free + 1, group.live + 1

    def _take_batches(self) -> None:
        for stage in self.stages:
            for group in stage.groups:
                while group.free and stage.queue:
                    self._take_batch(stage, group)

    def _take_batch(self, stage: Stage, group: Group) -> None:
        batch = [stage.queue.popleft() for _ in range(min(group.batch, len(stage.queue)))]
        times = group.table[len(batch)]
        end_ns = self.now_ns + times[min(max(rank for _, rank in batch), len(times) - 1)]
        heapq.heappush(self.running, (end_ns, self.number, stage, group, batch))
        self.number, group.free = self.number + 1, group.free - 1

    def _finish(self, stage: Stage, group: Group, batch: list[tuple[int, int]]) -> None:
        if group.surplus:
            group.surplus, group.live, group.paid_ns = group.surplus - 1, group.live - 1, group.paid_ns + self.now_ns
        else:
            group.free += 1
        for query, _ in batch:
            self.left[query][stage.name] -= 1
            if not self.left[query][stage.name]:
                self.complete[query].add(stage.name)
                self._start(query, stage.name)
