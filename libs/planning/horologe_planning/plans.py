"""Configurations of stages and the plan of a pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from horologe_planning.hardware import HardwareType

REPLICAS_LIMIT = 10_000


class StageConfiguration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The control parameters of a stage: model, hardware type, largest batch, number of replicas."""

    stage: str
    model: str
    hardware: str
    batch: int = 1
    replicas: int = 1

    def describe(self) -> str:
        """Return the configuration in one phrase, for tables and reasons."""
        return f"{self.replicas} x {self.hardware}, batch {self.batch}"


Configuration = tuple[StageConfiguration, ...]
"""Of a pipeline: one for each stage, in the order of the structure."""


def price_of(configuration: Iterable[StageConfiguration], hardware: Mapping[str, HardwareType]) -> float:
    """Return the dollars per hour of all replicas."""
    return sum(stage.replicas * hardware[stage.hardware].price_per_hour for stage in configuration)


class PlannedStage(StageConfiguration, frozen=True, forbid_unknown_fields=True):
    """A stage of a plan, with the figures that the tuner scales it by."""

    throughput: float = 0.0
    """Calls per second of one replica at `batch` (mu_m)."""
    scale_factor: float = 1.0
    """Mean calls per query (s_m)."""
    provisioning_ratio: float = 0.0
    """Load at the planned rate as a part of the throughput of all replicas (rho_m, InferLine section 5)."""
    utilisation: float = 0.0
    """Part of the replicas' time that the estimator found them busy."""


class Alternative(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A configuration that was not chosen, and the reason."""

    stages: tuple[StageConfiguration, ...]
    cost_per_hour: float
    reason: str


class PipelinePlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The cheapest configuration found, and the forecast of the estimator for the sample trace."""

    pipeline: str
    slo_ns: int
    stages: tuple[PlannedStage, ...]
    cost_per_hour: float
    p99_ns: int
    attainment: float
    """Part of the sample's queries that meet the SLO."""
    attainment_bound: float
    """Part that an unseen trace meets with the confidence of the objective; see `Objective`."""
    rate: float
    """Mean queries per second of the sample."""
    service_ns: int
    """Time of the longest path with full batches and without queueing."""
    cost_bound: float = 0.0
    """No configuration costs less; see `isolated_bounds`. 0: not computed."""
    runner_up: Alternative | None = None
    """The cheapest feasible configuration with other hardware."""
    rejected: Alternative | None = None
    """The cheapest single change that would cost less. It misses the objective."""
    evaluations: int = 0
    """Runs of the estimator."""

    @property
    def configuration(self) -> Configuration:
        """The stages without the figures of the plan."""
        return tuple(
            StageConfiguration(stage.stage, stage.model, stage.hardware, stage.batch, stage.replicas)
            for stage in self.stages
        )
