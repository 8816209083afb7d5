"""Evaluates configurations with the estimator, each once, and counts the runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from horologe_common.clock import NEVER_NS
from horologe_planning.estimator.estimator import Simulation, StageLoad
from horologe_planning.estimator.pipeline_workload import PipelineTrace
from horologe_planning.hardware import price_of
from horologe_planning.plan import MAX_REPLICAS, Placement
from horologe_planning.search.objective import Objective, percentile_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy as np
    from numpy.typing import NDArray

    from horologe_common.pipelines import PipelineStage, PipelineStructure
    from horologe_planning.hardware import HardwareType
    from horologe_planning.profiles import Profiles, StageProfile


Configuration = tuple[Placement, ...]
"""Placements on whole devices, one for each stage, in the order of the structure. Figures are left out."""


class Forecast(NamedTuple):
    """Result of a complete run."""

    latencies_ns: NDArray[np.int64]
    p99_ns: int
    attainment: float
    missed_bound: float
    loads: list[StageLoad]


class Evaluator:
    """A planning problem: workload, profiles, prices and objective; and the results found so far.

    Configurations are tested on the workload at the highest rate that the objective expects.
    """

    def __init__(
        self,
        workload: PipelineTrace,
        profiles: Profiles,
        hardware: dict[str, HardwareType],
        objective: Objective,
        on_run: Callable[[int], None] = lambda runs: None,
    ) -> None:
        """Raise ValueError for an invalid objective, and for a stage that no known hardware type can run.

        `on_run` is called with the number of runs after each of them.
        """
        objective.validate()
        self.workload, self.profiles, self.hardware, self.objective = workload, profiles, hardware, objective
        self._tested = workload.at_rate(1 + objective.rate_margin(workload.arrivals_ns))
        self.runs = 0
        self._on_run = on_run
        self._missed: dict[Configuration, float] = {}
        self._reached_ns: dict[Configuration, int] = {}
        for stage in self.structure.stages:
            self.hardware_of(stage)

    @property
    def structure(self) -> PipelineStructure:
        return self.workload.structure

    def hardware_of(self, stage: PipelineStage) -> list[HardwareType]:
        """Return the hardware types with a price that the stage's model has a profile on, dearest first.

        Raises ValueError if there is none.
        """
        profiled = self.profiles.get(stage.model, {})
        types = [self.hardware[name] for name in profiled if name in self.hardware]
        if not types:
            known, priced = ", ".join(profiled) or "none", ", ".join(self.hardware)
            raise ValueError(f"stage {stage.name}: {stage.model} has profiles on {known}, wanted one of {priced}")
        return sorted(types, key=lambda kind: -kind.price_per_hour)

    def profile_of(self, placed: Placement) -> StageProfile:
        """Return the profile of a stage's model on its hardware."""
        return self.profiles[placed.model][placed.hardware]

    def price(self, configuration: Iterable[Placement]) -> float:
        """Return the dollars per hour."""
        return price_of(configuration, self.hardware)

    def missed_bound(self, configuration: Configuration) -> float:
        """Return the bound of missed queries, see `Objective`. 1 if so many have missed that the run ended early."""
        if configuration not in self._missed:
            limit = self.objective.missed_limit(self.workload.arrivals_ns.size)
            simulation = self._run(self._tested, configuration, limit)
            bound = 1.0 if simulation.stopped else self.objective.missed_bound(simulation.latencies_ns)
            self._missed[configuration] = bound
        return self._missed[configuration]

    def reached_slo_ns(self, configuration: Configuration) -> int:
        """Return the shortest SLO with which the configuration would meet the objective."""
        if configuration not in self._reached_ns:
            latencies_ns = self._run(self._tested, configuration, NEVER_NS).latencies_ns
            self._reached_ns[configuration] = self.objective.nearest_slo_ns(latencies_ns)
        return self._reached_ns[configuration]

    def is_feasible(self, configuration: Configuration) -> bool:
        return self.objective.is_met(self.missed_bound(configuration))

    def forecast(self, configuration: Configuration) -> Forecast:
        """Return the result of a complete run on the sample, with the bound for unseen arrivals."""
        simulation = self._run(self.workload, configuration, NEVER_NS)
        latencies_ns = simulation.latencies_ns
        attainment = float((latencies_ns <= self.objective.slo_ns).mean())
        bound = self.objective.missed_bound(self._run(self._tested, configuration, NEVER_NS).latencies_ns)
        return Forecast(latencies_ns, percentile_ns(latencies_ns), attainment, bound, simulation.loads())

    def unlimited(self, configuration: Configuration) -> Configuration:
        """Return the configuration with so many replicas that no call of the trace waits."""
        return tuple(msgspec.structs.replace(stage, replicas=1 << 40) for stage in configuration)

    def least_replicas(self, configuration: Configuration, place: int, most: int = MAX_REPLICAS, least: int = 1) -> int:
        """Return the fewest replicas of a stage, `least` to `most`, that make the configuration feasible. 0: none do.

        Assumes that a further replica never makes a feasible configuration infeasible.
        """

        def is_enough(count: int) -> bool:
            return self.is_feasible(replace_stage(configuration, place, replicas=count))

        return first_true(is_enough, least, most)

    def _run(self, workload: PipelineTrace, configuration: Configuration, missed_limit: int) -> Simulation:
        slo_ns = self.objective.slo_ns
        simulation = Simulation(workload, self.profiles, configuration, slo_ns=slo_ns, missed_limit=missed_limit)
        simulation.run()
        self.runs += 1
        self._on_run(self.runs)
        return simulation


def replace_stage(configuration: Configuration, place: int, **fields: object) -> Configuration:
    """Return the configuration with other fields of the stage at `place`."""
    stages = list(configuration)
    stages[place] = msgspec.structs.replace(stages[place], **fields)
    return tuple(stages)


def first_true(test: Callable[[int], bool], least: int, most: int) -> int:
    """Return the least number from `least` to `most` that passes the test. 0: none does.

    Assumes that all numbers above one that passes do so too. The steps double from `least` on, then the last step is
    searched by halves, because runs of infeasible configurations end early and those of feasible ones do not.
    """
    step, failed = 1, least - 1
    while failed < most:
        tried = min(failed + step, most)
        if test(tried):
            break
        failed, step = tried, 2 * step
    else:
        return 0
    passed = tried
    while passed - failed > 1:
        middle = (passed + failed) // 2
        if test(middle):
            passed = middle
        else:
            failed = middle
    return passed
