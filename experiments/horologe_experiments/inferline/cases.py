"""Pipelines with profiles and prices, their plans, and the scaling policies that start from a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from horologe_common.clock import s
from horologe_experiments.inferline.baselines.autoscale import AutoScale, LoadCurve
from horologe_experiments.inferline.baselines.coarse_grained import plan_coarse_grained, unit_throughput
from horologe_experiments.inferline.baselines.ds2 import Ds2
from horologe_experiments.inferline.baselines.forecast import ForecastScaling
from horologe_experiments.inferline.baselines.greedy_planner import initialize, minimize_cost
from horologe_experiments.inferline.baselines.kubernetes import CpuUtilisation, QueueLength
from horologe_experiments.inferline.scaling_policy import FixedReplicas
from horologe_experiments.inferline.tuner_policy import InferLineTuner
from horologe_load.arrivals import gamma
from horologe_planning.catalogue import EXAMPLE_PIPELINES, catalogue_profiles
from horologe_planning.estimator.estimator import Simulation
from horologe_planning.estimator.pipeline_workload import PipelineTrace
from horologe_planning.hardware import DEFAULT_PRICES, parse_prices, price_of
from horologe_planning.plan import Placement
from horologe_planning.search.evaluation import Evaluator
from horologe_planning.search.higher_rates import with_levels
from horologe_planning.search.objective import Objective
from horologe_planning.search.pipeline_planner import describe_plan, make_plan
from horologe_planning.search.whole_devices import fastest_hardware

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from horologe_common.pipelines import PipelineStructure
    from horologe_experiments.harness.experiment import Progress
    from horologe_experiments.inferline.scaling_policy import ScalingPolicy
    from horologe_planning.hardware import HardwareType
    from horologe_planning.plan import Plan
    from horologe_planning.profiles import Profiles
    from horologe_planning.report import ReportedPlan
    from horologe_planning.search.evaluation import Configuration

BURSTY = 4.0
"""CV of the bars for bursty arrivals."""
HPA_TARGET = 0.5
"""Utilisation of the Kubernetes walkthrough of the HPA."""
CURVE_LOADS = (0.25, 0.5, 0.75, 0.9, 1.0)
CURVE_S = 60
REFERENCE_LOAD = 0.75
"""Load of a unit that AutoScale scales to. AutoScale's own reference is the load at which the SLO is just met."""


class PipelineScene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields common to the scene files of experiments over pipelines, rates and CVs."""

    description: str
    pipelines: tuple[str, ...]
    rates: tuple[float, ...]
    """Queries per second."""
    cvs: tuple[float, ...]
    """Variance of the gaps over their squared mean."""
    plan_seconds: float
    """Length of the sample trace, for which plans are made."""
    serve_seconds: float
    """Length of each serving trace."""


class PipelineCase(NamedTuple):
    """A pipeline with the profiles and prices that it is planned and served with."""

    structure: PipelineStructure
    profiles: Profiles
    hardware: Mapping[str, HardwareType]

    def evaluator(self, arrivals_ns: NDArray[np.int64], seed: int) -> Evaluator:
        """Return the planning problem of a sample trace."""
        workload = PipelineTrace(self.structure, arrivals_ns, seed)
        return Evaluator(workload, self.profiles, dict(self.hardware), Objective(self.structure.slo_ns))

    def plan(self, arrivals_ns: NDArray[np.int64], seed: int) -> ReportedPlan:
        """Return InferLine's plan for a sample trace. Raises Infeasible."""
        return make_plan(self.evaluator(arrivals_ns, seed))

    def price(self, configuration: Configuration) -> float:
        """Return the dollars per hour."""
        return price_of(configuration, self.hardware)


def pipeline_case(name: str, slo_ns: int = 0, hardware: Sequence[str] = ()) -> PipelineCase:
    """Return one of the four pipelines of InferLine Fig. 2 with the catalogue's profiles.

    `slo_ns` 0: its own SLO. `hardware`: types that it may use; empty: all of the catalogue.
    """
    structure = EXAMPLE_PIPELINES[name]
    if slo_ns:
        structure = msgspec.structs.replace(structure, slo_ns=slo_ns)
    types = parse_prices(DEFAULT_PRICES)
    return PipelineCase(structure, catalogue_profiles(), {kind: types[kind] for kind in hardware or types})


def plan_greedily(evaluator: Evaluator) -> ReportedPlan:
    """Return the plan of algorithms 1 and 2 alone, without restarts and exchanges. Raises Infeasible."""
    return describe_plan(evaluator, minimize_cost(evaluator, initialize(evaluator, fastest_hardware(evaluator))))


def scaling_policies(
    case: PipelineCase, plan: Plan, sample_ns: NDArray[np.int64], seed: int
) -> dict[str, ScalingPolicy]:
    """Return fresh policies, by name, that start from InferLine's plan for a sample trace.

    inferline: the tuner with provisioning levels. inferline-paper: the tuner with the paper's provisioning ratios.
    """
    followed = with_levels(plan, case.evaluator(sample_ns, seed))
    scale_factors = {placed.stage: placed.scale_factor for placed in plan.placements}
    sustained = {placed.stage: placed.throughput * placed.provisioning_ratio(plan.rate) for placed in plan.placements}
    past_rates = [
        float(((sample_ns >= from_ns) & (sample_ns < from_ns + s(60))).sum()) / 60
        for from_ns in range(0, int(sample_ns[-1]) - s(60) + 1, s(60))
    ]
    policies: list[ScalingPolicy] = [
        FixedReplicas(),
        InferLineTuner(followed),
        InferLineTuner(plan, "inferline-paper"),
        Ds2(scale_factors),
        CpuUtilisation(HPA_TARGET),
        QueueLength({placed.stage: float(placed.max_batch) for placed in plan.placements}),
        ForecastScaling(scale_factors, sustained, past_rates),
    ]
    return {policy.name: policy for policy in policies}


def rows_by_point(
    points: Iterable[tuple[str, float, float]],
    progress: Progress,
    make_row: Callable[[str, float, float], dict[str, Any]],
) -> list[dict[str, Any]]:
    """Return a row for each point (pipeline, CV, rate), with the point in front of what `make_row` returns."""
    rows, points = [], list(points)
    for number, (name, cv, rate) in enumerate(points):
        progress(number / len(points), f"{name}, CV {cv:g}, {rate:g} queries/s")
        rows.append({"pipeline": name, "cv": cv, "rate": rate} | make_row(name, cv, rate))
    return rows


def configuration_text(configuration: Configuration) -> str:
    """Return the configuration of each stage in one line."""
    return "; ".join(f"{stage.stage}: {stage.describe()}" for stage in configuration)


def coarse_grained(
    case: PipelineCase, sample_ns: NDArray[np.int64], peak: bool, seed: int
) -> tuple[Configuration, AutoScale]:
    """Return the coarse-grained plan and its tuner. Raises ValueError if no unit meets the SLO."""
    structure, profiles = case.structure, case.profiles
    found = plan_coarse_grained(structure, profiles, case.hardware, sample_ns, "peak" if peak else "mean")
    if found is None:
        raise ValueError(f"{structure.name}: no unit meets the SLO of {structure.slo_ns / 1e6:g} ms")
    unit = tuple(Placement(stage.stage, stage.model, stage.hardware, stage.max_batch) for stage in found)
    return found, AutoScale(measure_load_curve(case, unit, seed), REFERENCE_LOAD)


def measure_load_curve(case: PipelineCase, unit: Configuration, seed: int) -> LoadCurve:
    """Return the mean queries inside one unit by its load, with Poisson arrivals (Little's law)."""
    capacity = unit_throughput(case.structure, case.profiles, unit)
    queries = []
    for load in CURVE_LOADS:
        arrivals_ns = gamma(load * capacity, 1.0, CURVE_S, [seed, 11])
        simulation = Simulation(PipelineTrace(case.structure, arrivals_ns, seed), case.profiles, unit)
        simulation.run()
        queries.append(load * capacity * float(simulation.latencies_ns.mean()) / 1e9)
    return LoadCurve([0.0, *CURVE_LOADS], [0.0, *queries])
