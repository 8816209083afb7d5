"""Structure of a pipeline, from traces of recent queries: its stages, their latencies, the time behind each stage."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, TypeAlias

from horologe_common.clock import s
from horologe_common.core.instruments import Histogram, RollingQuantile
from horologe_common.pipelines import STAGES_LIMIT, PipelineStage, PipelineStructure
from horologe_common.wire import StageState

if TYPE_CHECKING:
    from horologe_selector.core.pipelines.run_trace import RunTrace, Stage

Shape: TypeAlias = "tuple[tuple[Stage, int, tuple[Stage, ...]], ...]"

RUNS = 1000
"""Recent queries that the structure is learned from."""
WINDOW, AGE_NS, QUANTILE = 100, s(10), 0.95
"""The time behind a stage is the 95th percentile of its last 100 queries, none older than 10 s. Only queries that were
answered count, so it never exceeds the deadline: in an overload the first stages still get some of the budget."""


class StageRecord:
    """Measurements of one stage."""

    def __init__(self) -> None:
        self.remaining = RollingQuantile(WINDOW, AGE_NS, QUANTILE)
        self._overhead = RollingQuantile(WINDOW, AGE_NS, 1 - QUANTILE)
        self.latency = Histogram()
        self.drops = 0
        """Calls without outputs."""
        self.critical = 0
        """Queries whose critical path contains this stage."""

    def observe_call(self, now_ns: int, latency_ns: int, exec_ns: int) -> int:
        """Record a call with outputs. Return how long a call takes besides its execution if it need not queue."""
        self.latency.observe(latency_ns)
        self._overhead.observe(now_ns, max(0, latency_ns - exec_ns))
        return self._overhead.high_quantile(now_ns) or 0

    def describe(self, name: str) -> StageState:
        latency = self.latency
        p50_ns, p99_ns = latency.quantile(0.5), latency.quantile(0.99)
        return StageState(name, latency.total, p50_ns, p99_ns, self.drops, self.critical)


class LearnedStructure:
    """Structure of one pipeline. At most `STAGES_LIMIT` stages are recorded; calls of further stages count nowhere."""

    def __init__(self, name: str, slo_ns: int) -> None:
        self.name = name
        self.slo_ns = slo_ns
        self.latency = Histogram()
        """Latency of answered queries."""
        self._first: Stage | None = None
        """Stage of the first call of the last answered query."""
        self._records: dict[Stage, StageRecord] = {}
        self._shapes: deque[Shape] = deque(maxlen=RUNS)
        self._names: dict[Stage, str] = {}

    def stage_name(self, stage: Stage) -> str:
        """Return the name of a stage: its model, with `#2` for the second line of the driver that calls it."""
        self.find_record(stage)
        return self._names.get(stage, stage[0])

    def find_record(self, stage: Stage) -> StageRecord | None:
        """Return the record of a stage, a new one if there is room."""
        record = self._records.get(stage)
        if record is None and len(self._records) < STAGES_LIMIT:
            record = self._records[stage] = StageRecord()
            self._rename_stages()
        return record

    def remaining_ns(self, now_ns: int, stage: Stage) -> int:
        """Return the estimated time from the end of a call of this stage to the answer; 0 if not known."""
        record = self._records.get(stage)
        return (record and record.remaining.high_quantile(now_ns)) or 0

    def record_answer(self, now_ns: int, trace: RunTrace) -> None:
        """Learn from a query that the driver has answered now."""
        self.latency.observe(now_ns - trace.begin_ns)
        longest: dict[Stage, int] = {}
        for number, remaining_ns in trace.remaining_ns(now_ns).items():
            stage = trace.calls[number].stage
            longest[stage] = max(longest.get(stage, 0), remaining_ns)
        for stage, remaining_ns in longest.items():
            if record := self.find_record(stage):
                record.remaining.observe(now_ns, remaining_ns)
        for stage in dict.fromkeys(trace.calls[number].stage for number in trace.critical_path()):
            if record := self.find_record(stage):
                record.critical += 1
        shape = trace.shape()
        self._shapes.append(shape)
        self._first = shape[0][0] if shape else None

    def first_stage_name(self) -> str:
        """Return the name of the stage that queries start with; empty if not known."""
        return self.stage_name(self._first) if self._first else ""

    def structure(self) -> PipelineStructure | None:
        """Return the structure of the recent queries; None if no query has called a model."""
        shapes = Counter(self._shapes)
        positions, runs = _mean_positions(shapes)
        stages = []
        for stage in sorted(positions, key=lambda stage: (positions[stage], stage)):
            if stage not in self._names:
                continue
            parents = [parent for parent in _parents(shapes, stage) if positions[parent] < positions[stage]]
            stages.append(self._stage(shapes, stage, [parent for parent in parents if parent in self._names]))
        return PipelineStructure(self.name, self.slo_ns, tuple(stages), runs) if stages else None

    def stage_states(self) -> tuple[StageState, ...]:
        """Return the measurements of each stage, by name."""
        named = sorted((name, stage) for stage, name in self._names.items())
        return tuple(self._records[stage].describe(name) for name, stage in named)

    def _stage(self, shapes: Counter[Shape], stage: Stage, parents: list[Stage]) -> PipelineStage:
        visits = calls = chances = 0
        for shape, runs in shapes.items():
            counts = {visited: count for visited, count, _ in shape}
            if stage in counts:
                calls += runs * counts[stage]
                visits += runs
            if not parents or any(parent in counts for parent in parents):
                chances += runs
        name = self._names[stage]
        probability = min(1.0, visits / max(chances, 1))
        return PipelineStage(
            name, stage[0], tuple(self._names[parent] for parent in parents), probability, calls / visits
        )

    def _rename_stages(self) -> None:
        counts: Counter[str] = Counter()
        names: dict[Stage, str] = {}
        for stage in sorted(self._records):
            counts[stage[0]] += 1
            names[stage] = stage[0] if counts[stage[0]] == 1 else f"{stage[0]}#{counts[stage[0]]}"
        self._names = names


def _mean_positions(shapes: Counter[Shape]) -> tuple[dict[Stage, float], int]:
    """Return the mean position of each stage among the first calls of a query, and the number of queries."""
    sums: dict[Stage, int] = {}
    visits: dict[Stage, int] = {}
    for shape, runs in shapes.items():
        for position, (stage, _, _) in enumerate(shape):
            sums[stage] = sums.get(stage, 0) + runs * position
            visits[stage] = visits.get(stage, 0) + runs
    return {stage: sums[stage] / visits[stage] for stage in sums}, sum(shapes.values())


def _parents(shapes: Counter[Shape], stage: Stage) -> list[Stage]:
    """Return the parents of a stage in any query; none if most of its visits have none."""
    with_parents = without = 0
    parents: dict[Stage, bool] = {}
    for shape, runs in shapes.items():
        for visited, _, own in shape:
            if visited == stage:
                with_parents, without = (with_parents + runs, without) if own else (with_parents, without + runs)
                parents.update(dict.fromkeys(own, True))
    return sorted(parents) if with_parents >= without else []
