"""Joint planner: the cheapest devices, shares, batch sizes and placement of a pipeline that meet its SLO.

InferLine gives each replica a whole device, iGniter places single models on shares of GPUs. Here the stages of a
pipeline share devices under one deadline, and the estimator knows the time of each share beside its neighbours.

`video-monitoring` at 150 queries per second within 150 ms starts with `detect` 40%, `persons` 35% and `vehicles` 25% of
one V100, and `plates` with batches of up to 32 on two CPUs. It would meet 182 ms. Without batches of `plates` it meets
144 ms, so this layout is the plan.

A layout that no change of shares, batch sizes or places makes feasible is followed by the same layout with a device
more, for a stage that gains much by it. With an SLO of 150 ms, for `video-monitoring` at 400 queries per second:

    start                          3 cpu, 2 v100          262 ms
    other batch sizes and shares   3 cpu, 2 v100          202 ms
    a device more for `persons`    3 cpu, 2 v100, 1 k80   176 ms, then changes again

The times are the shortest SLOs that the layouts would meet.
"""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import TYPE_CHECKING

from horologe_planning.hardware import PRICE_ROUNDING
from horologe_planning.joint_planning.layout_candidates import LayoutCandidate, first_layouts, least_candidates
from horologe_planning.joint_planning.layouts import (
    Layout,
    PlannedDevice,
    StageShare,
    batch_changes,
    make_layout,
    placements,
    transfers,
)
from horologe_planning.plan import WHOLE_PERCENT, Placement, Plan
from horologe_planning.report import Alternative, PlanReport, ReportedPlan
from horologe_planning.search.cheapest_first import RUNS_LIMIT, search_cheapest, take_best_changes

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from horologe_planning.joint_planning.layout_evaluation import LayoutEvaluator


FIRST_LAYOUTS = 2
"""Layouts from which the search starts for a choice of hardware, of those that `first_layouts` proposes."""
GAIN = 0.98
"""Factor on the reached SLO that a device more must bring."""
STAGES = 2
"""Additions of a hardware type: those for the two stages that gain most."""
IMPROVEMENT = 0.995
"""Factor on the reached SLO that a change must bring."""
SHARED_RUNS = 400
"""Runs for each number of devices on which all stages are, after the limit."""
POLISH_RUNS = 150
"""Runs to increase the distance of the found layout from the SLO."""


def plan_layout(evaluator: LayoutEvaluator, cost_limit: float = inf, runs_limit: int = RUNS_LIMIT) -> Layout | None:
    """Return the cheapest feasible layout found; None if none costs less than `cost_limit` dollars per hour."""
    result = search_cheapest(SharedDevices(evaluator), runs_limit, cost_limit)
    if result.following is not None:
        return share_everything(evaluator, cost_limit)
    return polish(evaluator, result.cheapest) if result.cheapest is not None else None


def share_everything(evaluator: LayoutEvaluator, cost_limit: float) -> Layout | None:
    """Return a feasible layout with the fewest shared devices, on which all stages are that can share.

    It is for searches that end at their limit of runs. They have not come to the dearer layouts.
    """
    candidate = max(least_candidates(evaluator), key=lambda candidate: len(candidate.demands))
    while candidate.pools:
        for layout in best_layouts(evaluator, candidate):
            if evaluator.price(layout) >= cost_limit - PRICE_ROUNDING:
                return None
            last_run = evaluator.problem.runs + SHARED_RUNS
            changed = search_layout(evaluator, layout, evaluator.problem.objective.slo_ns, last_run)
            if evaluator.is_feasible(changed):
                return polish(evaluator, changed)
        candidate = candidate._replace(pools={hardware: count + 1 for hardware, count in candidate.pools.items()})
    return None


def polish(evaluator: LayoutEvaluator, layout: Layout) -> Layout:
    """Return the layout with more time left to the SLO, at the same cost: it serves traffic that was not seen."""
    changed = search_layout(evaluator, layout, 0.0, evaluator.problem.runs + POLISH_RUNS)
    better = evaluator.price(changed) <= evaluator.price(layout) and evaluator.is_feasible(changed)
    return changed if better else layout


class SharedDevices:
    """Layouts of a problem as a `SearchSpace`. A stage may have replicas on several hardware types."""

    def __init__(self, evaluator: LayoutEvaluator) -> None:
        self._evaluator = evaluator
        self.price = evaluator.price
        self.is_feasible = evaluator.is_feasible
        self.reached_slo_ns = evaluator.reached_slo_ns

    @property
    def runs(self) -> int:
        """Runs of the estimator so far."""
        return self._evaluator.problem.runs

    def starts(self) -> Iterator[Layout]:
        """Yield layouts of the fewest devices that each stage needs by itself, for each choice of hardware."""
        for candidate in sorted(least_candidates(self._evaluator), key=self._candidate_price):
            yield from best_layouts(self._evaluator, candidate)

    def improve(self, state: Layout) -> Layout:
        """Return the layout after changes that reduce the reached SLO, until it meets the objective."""
        return search_layout(self._evaluator, state, self._evaluator.problem.objective.slo_ns)

    def additions(self, state: Layout) -> list[Layout]:
        """Return the layout with a whole device more, of each hardware type, for the stages that gain most by it."""
        reached_ns, found = self.reached_slo_ns(state), list[Layout]()
        for hardware in self._evaluator.problem.hardware:
            widened = [self._add(state, hardware, stage) for stage in self._evaluator.models]
            better = [other for other in widened if self.reached_slo_ns(other) < GAIN * reached_ns]
            found += sorted(better, key=self.reached_slo_ns)[:STAGES]
        return found

    def devices(self, state: Layout) -> Hashable:
        """Return the type of each device, with its stage if the device cannot be shared."""
        kinds = []
        for device in state:
            stage = device.shares[0].stage
            shareable = self._evaluator.times.is_shareable(device.hardware, self._evaluator.models[stage])
            kinds.append((device.hardware, "" if shareable else stage))
        return tuple(sorted(kinds))

    def _candidate_price(self, candidate: LayoutCandidate) -> float:
        hardware = self._evaluator.problem.hardware
        shared = sum(count * hardware[kind].price_per_hour for kind, count in candidate.pools.items())
        return shared + self._evaluator.problem.price(candidate.dedicated)

    def _add(self, layout: Layout, hardware: str, stage: str) -> Layout:
        """Return the layout with a device for the stage, with its best batch size; without, if it has no profile."""
        profile = self._evaluator.problem.profiles[self._evaluator.models[stage]].get(hardware)
        if profile is None:
            return layout
        devices = (PlannedDevice(hardware, (StageShare(stage, WHOLE_PERCENT, size),)) for size in profile.batch_sizes)
        return min((make_layout((*layout, device)) for device in devices), key=self.reached_slo_ns)


def best_layouts(evaluator: LayoutEvaluator, candidate: LayoutCandidate) -> list[Layout]:
    """Return the layouts of a candidate that reach the shortest SLOs."""
    return sorted(dict.fromkeys(first_layouts(candidate)), key=evaluator.reached_slo_ns)[:FIRST_LAYOUTS]


def search_layout(evaluator: LayoutEvaluator, layout: Layout, target_ns: float, last_run: float = inf) -> Layout:
    """Return the layout after changes that reduce the reached SLO, until it is at most `target_ns`.

    Changes are batch sizes, transfers of share from large to small, and other places. The search also ends when the
    estimator has made `last_run` runs.
    """

    def is_enough(reached_ns: float) -> bool:
        return reached_ns <= target_ns or evaluator.problem.runs >= last_run

    return take_best_changes(layout, _kinds_of_changes(evaluator), evaluator.reached_slo_ns, IMPROVEMENT, is_enough)


def _kinds_of_changes(evaluator: LayoutEvaluator) -> list[Callable[[Layout], Iterator[Layout]]]:
    def sizes_of(hardware: str, stage: str) -> tuple[int, ...]:
        return evaluator.problem.profiles[evaluator.models[stage]][hardware].batch_sizes

    def can_share(hardware: str, stage: str) -> bool:
        return evaluator.times.is_shareable(hardware, evaluator.models[stage])

    return [
        lambda layout: transfers(layout, 10.0),
        lambda layout: batch_changes(layout, sizes_of),
        lambda layout: transfers(layout, 5.0),
        lambda layout: placements(layout, can_share),
        lambda layout: transfers(layout, 2.5),
    ]


def joint_plan(evaluator: LayoutEvaluator, layout: Layout, dedicated: ReportedPlan) -> ReportedPlan:
    """Return the plan of a layout. `dedicated`: the plan of whole devices, the runner-up."""
    problem, forecast = evaluator.problem, evaluator.forecast(layout)
    cost, others_cost = evaluator.price(layout), dedicated.report.cost_per_hour
    saved = others_cost - cost
    reason = f"on whole devices it costs {saved:.3f} dollars per hour more ({saved / cost:.1%})"
    report = PlanReport(
        cost_per_hour=cost,
        p99_ns=forecast.p99_ns,
        attainment=forecast.attainment,
        attainment_bound=1 - forecast.missed_bound,
        runner_up=Alternative(dedicated.plan.placements, others_cost, reason),
        evaluations=problem.runs,
    )
    placements = tuple(_placements(evaluator, layout))
    plan = Plan(problem.structure.name, problem.objective.slo_ns, problem.workload.rate, placements)
    return ReportedPlan(plan, report)


def _placements(evaluator: LayoutEvaluator, layout: Layout) -> Iterator[Placement]:
    """Yield a placement for each share. Devices are numbered by hardware type: v100-1, v100-2, cpu-1."""
    slo_ns, throughput, numbers = _stage_slos(evaluator, layout), dict.fromkeys(evaluator.models, 0.0), Counter[str]()
    for group in evaluator.configuration(layout):
        throughput[group.stage] += group.replicas * evaluator.problem.profile_of(group).throughput(group.max_batch)
    for device in layout:
        numbers[device.hardware] += 1
        for place, share in enumerate(device.shares):
            group = evaluator.group_of(device, place)
            profile = evaluator.problem.profile_of(group)
            own = profile.throughput(group.max_batch)
            calls = evaluator.problem.structure.scale_factor(group.stage)
            yield Placement(
                group.stage,
                group.model,
                device.hardware,
                group.max_batch,
                percent=share.percent,
                device=f"{device.hardware}-{numbers[device.hardware]}",
                scale_factor=calls * own / throughput[group.stage],
                throughput=own,
                slo_ns=slo_ns[group.stage],
                latency_ns=round(profile.mean_latency_ns(group.max_batch)),
                exec_ns=tuple((n, profile.latency_ns[n]) for n in profile.batch_sizes if n <= group.max_batch),
            )


def _stage_slos(evaluator: LayoutEvaluator, layout: Layout) -> dict[str, int]:
    """Return what the rest of the longest path through each stage leaves of the SLO, in nanoseconds.

    The tuner looks at the latencies of each model, and a shadow repairs a stage that takes longer.
    """
    slowest = {group.stage: group for group in evaluator.configuration(layout)}  # the slowest group comes last
    structure = evaluator.problem.structure
    own_ns = {
        stage: evaluator.problem.profile_of(group).mean_latency_ns(group.max_batch) for stage, group in slowest.items()
    }
    before: dict[str, float] = {}
    after = dict.fromkeys(own_ns, 0.0)
    for stage in structure.stages:
        before[stage.name] = max((before[parent] + own_ns[parent] for parent in stage.parents), default=0.0)
    for stage in reversed(structure.stages):
        for parent in stage.parents:
            after[parent] = max(after[parent], after[stage.name] + own_ns[stage.name])
    slo_ns = evaluator.problem.objective.slo_ns
    return {name: max(1, round(slo_ns - before[name] - after[name])) for name in own_ns}
