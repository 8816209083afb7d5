"""Serving simulation: the estimator runs a plan on a trace while a scaling policy changes the replicas.

A new replica starts to work `ACTIVATION_NS` after it was ordered and is paid for from its order. A removed one stops
at once, or at the end of its batch. No query is refused or dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from horologe_common.clock import s
from horologe_experiments.inferline.scaling_policy import Observation, StageLoad
from horologe_experiments.inferline.serving_simulation import ServingSimulation, observe_stages, queries_in_flight
from horologe_planning.estimator.pipeline_workload import PipelineTrace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from horologe_experiments.inferline.cases import PipelineCase
    from horologe_experiments.inferline.scaling_policy import ScalingPolicy
    from horologe_planning.plan import Placement

ACTIVATION_NS = s(5)
"""Activation time of a replica (InferLine section 5)."""


class ServedRun(NamedTuple):
    """The result of serving a trace."""

    arrivals_ns: NDArray[np.int64]
    latencies_ns: NDArray[np.int64]
    slo_ns: int
    dollars: float
    """Cost of all replicas over the trace."""
    changes: list[tuple[int, dict[str, int]]]
    """Time and replicas by stage, at the start and after each change."""

    @property
    def attainment(self) -> float:
        """Share of the queries within the SLO."""
        return float((self.latencies_ns <= self.slo_ns).mean())

    @property
    def miss_rate(self) -> float:
        """Share of the queries beyond the SLO."""
        return 1 - self.attainment

    @property
    def dollars_per_hour(self) -> float:
        """Mean cost over the trace."""
        return self.dollars * 3.6e12 / int(self.arrivals_ns[-1])

    def miss_rate_between(self, from_ns: int, until_ns: int) -> float:
        """Return the share of the queries of a stretch that miss the SLO; 0 without queries."""
        inside = (self.arrivals_ns >= from_ns) & (self.arrivals_ns < until_ns)
        return float((self.latencies_ns[inside] > self.slo_ns).mean()) if inside.any() else 0.0

    def windows(self, width_ns: int, case: PipelineCase, configuration: Sequence[Placement]) -> list[dict[str, Any]]:
        """Return arrival rate, miss rate and cost per hour of each stretch of `width_ns`, for figures."""
        price = {stage.stage: case.hardware[stage.hardware].price_per_hour for stage in configuration}
        rows = []
        for from_ns in range(0, int(self.arrivals_ns[-1]), width_ns):
            replicas = next(now for at_ns, now in reversed(self.changes) if at_ns <= from_ns)
            inside = (self.arrivals_ns >= from_ns) & (self.arrivals_ns < from_ns + width_ns)
            rows.append(
                {
                    "second": from_ns // s(1),
                    "rate": round(int(inside.sum()) * 1e9 / width_ns, 1),
                    "missed": round(self.miss_rate_between(from_ns, from_ns + width_ns), 4),
                    "dollars_per_hour": round(sum(price[stage] * count for stage, count in replicas.items()), 3),
                }
            )
        return rows

    def reversals(self, from_ns: int, until_ns: int) -> int:
        """Return how often the replicas of a stage changed direction in a stretch, of the stage with the most."""
        most = 0
        before = [replicas for at_ns, replicas in self.changes if at_ns < from_ns][-1:]
        inside = before + [replicas for at_ns, replicas in self.changes if from_ns <= at_ns < until_ns]
        for stage in inside[0] if inside else ():
            steps = np.sign(np.diff([replicas[stage] for replicas in inside]))
            steps = steps[steps != 0]
            most = max(most, int((steps[1:] != steps[:-1]).sum()))
        return most


def serve(
    case: PipelineCase,
    configuration: Sequence[Placement],
    arrivals_ns: NDArray[np.int64],
    policy: ScalingPolicy,
    seed: int,
) -> ServedRun:
    """Serve a trace, and let the policy decide every `policy.interval_ns`."""
    simulation = ServingSimulation(PipelineTrace(case.structure, arrivals_ns, seed), case.profiles, configuration)
    wanted = {stage.stage: stage.replicas for stage in configuration}
    changes = [(0, dict(wanted))]
    totals: dict[str, tuple[int, int]] = dict.fromkeys(wanted, (0, 0))
    end_ns = int(arrivals_ns[-1]) + 1
    for now_ns in range(policy.interval_ns, end_ns, policy.interval_ns):
        simulation.run_until(now_ns)
        observation = _observe(simulation, arrivals_ns, now_ns, policy.interval_ns, totals)
        changed = {stage: count for stage, count in policy.replicas(observation).items() if count != wanted[stage]}
        for stage, count in changed.items():
            simulation.set_replicas(stage, count, now_ns + ACTIVATION_NS)
        if changed:
            wanted |= changed
            changes.append((now_ns, dict(wanted)))
    simulation.run_until(end_ns)
    dollars = simulation.cost(configuration, case.hardware)
    simulation.run_until()
    return ServedRun(arrivals_ns, simulation.latencies_ns, case.structure.slo_ns, dollars, changes)


def _observe(
    simulation: ServingSimulation,
    arrivals_ns: NDArray[np.int64],
    now_ns: int,
    interval_ns: int,
    totals: dict[str, tuple[int, int]],
) -> Observation:
    """Return the present observation. `totals`: calls and busy time of each stage at the last one, updated here."""
    stages = {}
    for name, state in observe_stages(simulation).items():
        calls, busy_ns = totals[name]
        totals[name] = state.calls, state.busy_ns
        used_ns = state.busy_ns - busy_ns
        stages[name] = StageLoad(
            state.ordered,
            state.ready,
            state.waiting + state.running,
            state.calls - calls,
            used_ns / 1e9,
            min(1.0, used_ns / (max(1, state.ready) * interval_ns)),
        )
    arrived = int(arrivals_ns.searchsorted(now_ns))
    return Observation(now_ns, arrivals_ns[:arrived], stages, queries_in_flight(simulation))
