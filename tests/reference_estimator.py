"""The rules of the estimator in plain Python, to compare with: the docstring of `horologe_tuner.core.estimator`."""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.pipelines import PipelineStructure
    from horologe_tuner.core.plans import StageConfiguration
    from horologe_tuner.core.profiles import Profiles

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


class Stage:
    """A queue of (query, rank) and its replicas."""

    def __init__(
        self, name: str, parents: Sequence[str], configuration: StageConfiguration, profiles: Profiles
    ) -> None:
        self.name, self.parents, self.batch = name, parents, configuration.batch
        self.table = profiles[configuration.model][configuration.hardware].latency_table(self.batch).tolist()
        self.queue: deque[tuple[int, int]] = deque()
        self.free = self.live = configuration.replicas
        self.surplus = 0
        self.pending: list[int] = []
        self.paid_ns = 0


class Reference:
    """A run of the rules. `latencies_ns` and `paid_ns()` are its results."""

    def __init__(
        self, structure: PipelineStructure, profiles: Profiles, configurations: Sequence[StageConfiguration],
        arrivals_ns: Sequence[int], calls: Sequence[Sequence[int]], seed: int, changes: Sequence[Change] = (),
    ) -> None:  # fmt: skip
        stages = zip(structure.stages, configurations, strict=True)
        self.stages = [Stage(stage.name, stage.parents, chosen, profiles) for stage, chosen in stages]
        self.calls = [{stage.name: n for stage, n in zip(self.stages, row, strict=True)} for row in calls]
        self.left = [dict(row) for row in self.calls]
        self.complete = [{name for name, n in row.items() if not n} for row in self.calls]
        self.running: list[tuple[int, int, Stage, list[tuple[int, int]]]] = []
        self.arrivals_ns, self.seed = arrivals_ns, seed
        self.arrivals, self.changes = deque(enumerate(arrivals_ns)), deque(changes)
        self.latencies_ns, self.now_ns, self.number = [-1] * len(arrivals_ns), 0, 0
        while times := self._times():
            self.now_ns = min(times)
            self._step()

    def paid_ns(self) -> dict[str, int]:
        """Return the paid replica time by stage at the last event."""
        return {s.name: s.paid_ns + (s.live + len(s.pending)) * self.now_ns for s in self.stages}

    def _times(self) -> list[int]:
        """Return the times of everything that will happen."""
        times = [at_ns for stage in self.stages for at_ns in stage.pending]
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
                ranks = len(stage.table[0])
                for call in range(self.calls[query][stage.name]):
                    stage.queue.append((query, input_rank(self.seed, query, place, call, ranks) if ranks > 1 else 0))

    def _apply(self, change: Change) -> None:
        stage = next(stage for stage in self.stages if stage.name == change.stage)
        present = stage.live - stage.surplus + len(stage.pending)
        for _ in range(change.replicas - present):
            stage.pending.append(change.ready_ns)
            stage.paid_ns -= self.now_ns
        for _ in range(present - change.replicas):
            if stage.pending:
                stage.pending.remove(max(stage.pending))
                stage.paid_ns += self.now_ns
            elif stage.free:
                stage.free, stage.live, stage.paid_ns = stage.free - 1, stage.live - 1, stage.paid_ns + self.now_ns
            else:
                stage.surplus += 1

    def _activate(self) -> None:
        for stage in self.stages:
            for at_ns in [at_ns for at_ns in stage.pending if at_ns <= self.now_ns]:
                stage.pending.remove(at_ns)
                stage.free, stage.live = stage.free + 1, stage.live + 1

    def _take_batches(self) -> None:
        for stage in self.stages:
            while stage.free and stage.queue:
                batch = [stage.queue.popleft() for _ in range(min(stage.batch, len(stage.queue)))]
                end_ns = self.now_ns + stage.table[len(batch)][max(rank for _, rank in batch)]
                heapq.heappush(self.running, (end_ns, self.number, stage, batch))
                self.number, stage.free = self.number + 1, stage.free - 1

    def _finish(self, stage: Stage, batch: list[tuple[int, int]]) -> None:
        if stage.surplus:
            stage.surplus, stage.live, stage.paid_ns = stage.surplus - 1, stage.live - 1, stage.paid_ns + self.now_ns
        else:
            stage.free += 1
        for query, _ in batch:
            self.left[query][stage.name] -= 1
            if not self.left[query][stage.name]:
                self.complete[query].add(stage.name)
                self._start(query, stage.name)
