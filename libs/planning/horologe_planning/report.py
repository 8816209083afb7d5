"""Result of planning: a plan with the report on it, for people and scripts, or `Infeasible`."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from horologe_planning.plan import Placement, Plan


class Alternative(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A configuration that was not chosen, and the reason."""

    placements: tuple[Placement, ...]
    cost_per_hour: float
    reason: str


class PlanReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cost of a pipeline's plan, and the forecast of the estimator for the sample trace."""

    cost_per_hour: float
    """US dollars."""
    p99_ns: int
    attainment: float
    """Part of the sample's queries that meet the SLO."""
    attainment_bound: float
    """Part that an unseen trace meets with the confidence of the objective; see `Objective`."""
    utilisation: dict[str, float] = {}
    """Part of the replicas' time that the estimator found them busy, by stage."""
    cost_bound: float = 0.0
    """No configuration of whole devices costs less; see `isolated_bounds`. 0: not computed."""
    runner_up: Alternative | None = None
    """The cheapest feasible configuration with other hardware."""
    rejected: Alternative | None = None
    """The cheapest single change that would cost less. It misses the objective."""
    evaluations: int = 0
    """Runs of the estimator."""


class ReportedPlan(NamedTuple):
    """A plan of a pipeline, and the report on it."""

    plan: Plan
    report: PlanReport


class SharingReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cost of plans that place workloads on shares of devices."""

    cost_per_hour: float
    """US dollars. A device costs the same whatever part of it is used."""
    cost_bound: float = 0.0
    """No plan with the batch sizes and the parts of split workloads that were tried costs less. 0: not computed."""
    margin: float = 0.0
    """Standard deviations of the prediction error that the plans leave room for, at least those wanted."""


class SharedPlans(NamedTuple):
    """Plans of workloads that share devices, one for each workload, and the report on them."""

    plans: tuple[Plan, ...]
    report: SharingReport


class Infeasible(ValueError):
    """No plan meets the SLO. `nearest_slo_ns`: the shortest SLO that one meets; 0: unknown."""

    def __init__(self, reason: str, nearest_slo_ns: int = 0) -> None:
        super().__init__(reason)
        self.nearest_slo_ns = nearest_slo_ns
