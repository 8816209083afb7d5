"""The plan that the tuner carries out: stages with their replicas, and the traffic that they were planned for.

`horologe plan --json` writes it, `horologe plan --apply` sends it to a running tuner.
"""

from __future__ import annotations

import math

import msgspec

from horologe_tuner.core.pipeline_tuning.envelope import TrafficEnvelope

MAX_REPLICAS = 10_000
MAX_STAGES = 256


class StageTarget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stage of a pipeline, as planned. `throughput`: queries per second of one replica at `max_batch`."""

    stage: str
    model: str
    hardware: str
    max_batch: int
    replicas: int
    throughput: float
    scale_factor: float = 1.0
    """Mean calls of the stage per query (the paper's s_m)."""

    def provisioning_ratio(self, rate: float) -> float:
        """Return the paper's rho_m: load at `rate` queries per second as a part of the planned throughput."""
        return rate * self.scale_factor / (self.replicas * self.throughput)


class ProvisioningLevel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Replicas of each stage that suffice for the sample at `factor` times its rate."""

    factor: float
    replicas: tuple[int, ...]


class TuningPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The configuration of a pipeline, or of a single model as a pipeline of one stage."""

    pipeline: str
    slo_ns: int
    rate: float
    """Mean queries per second of the sample trace (lambda)."""
    envelope: TrafficEnvelope
    """Of the sample trace."""
    stages: tuple[StageTarget, ...]
    entry: str = ""
    """Stage whose calls are counted as arrivals of queries. Empty: the first stage."""
    levels: tuple[ProvisioningLevel, ...] = ()
    """Ascending. Empty: replicas follow the provisioning ratios, as in the paper."""
    pooled: bool = False
    """True if the stages of a hardware type share its devices: every device then holds every model of the type, and
    `replicas` of each stage is the number of these devices."""

    @property
    def entry_stage(self) -> StageTarget:
        """The stage by whose calls queries are counted."""
        return next((stage for stage in self.stages if stage.stage == self.entry), self.stages[0])

    def validate(self) -> None:
        """Raise ValueError that names the first invalid field, its value and what is wanted."""
        if not self.pipeline:
            raise ValueError("pipeline: got no name, wanted one")
        if not 1 <= len(self.stages) <= MAX_STAGES:
            raise ValueError(f"stages: got {len(self.stages)}, wanted 1 to {MAX_STAGES}")
        if self.slo_ns <= 0:
            raise ValueError(f"slo_ns: got {self.slo_ns}, wanted a positive number of nanoseconds")
        _check_positive("rate", self.rate)
        self.envelope.validate()
        names = [stage.stage for stage in self.stages]
        if len(set(names)) < len(names):
            raise ValueError(f"stages: got {names}, wanted a different name for each stage")
        if self.entry and self.entry not in names:
            raise ValueError(f"entry: got {self.entry!r}, wanted one of {', '.join(names)}")
        for stage in self.stages:
            _check_stage(stage)
        _check_levels(self.levels, len(self.stages))


def parse_plan(document: bytes | str) -> TuningPlan:
    """Return the plan in a JSON document. Raises ValueError for one that is not valid."""
    try:
        plan = msgspec.json.decode(document, type=TuningPlan)
    except msgspec.MsgspecError as error:
        raise ValueError(f"plan: {error}") from error
    plan.validate()
    return plan


def _check_stage(stage: StageTarget) -> None:
    place = f"stage {stage.stage!r}: "
    if not stage.stage or not stage.model:
        raise ValueError(f"{place}model: got {stage.model!r}, wanted names of stage and model")
    if not 1 <= stage.replicas <= MAX_REPLICAS:
        raise ValueError(f"{place}replicas: got {stage.replicas}, wanted 1 to {MAX_REPLICAS}")
    if stage.max_batch < 1:
        raise ValueError(f"{place}max_batch: got {stage.max_batch}, wanted at least 1")
    _check_positive(f"{place}throughput", stage.throughput)
    _check_positive(f"{place}scale_factor", stage.scale_factor)


def _check_positive(field: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{field}: got {value}, wanted a positive number")


def _check_levels(levels: tuple[ProvisioningLevel, ...], stages: int) -> None:
    factors, counts = [level.factor for level in levels], [n for level in levels for n in level.replicas]
    if not all(0 < low < high < math.inf for low, high in zip([1e-9, *factors], factors, strict=False)):
        raise ValueError(f"levels.factor: got {factors}, wanted positive numbers that ascend")
    if any(len(level.replicas) != stages for level in levels) or not all(1 <= n <= MAX_REPLICAS for n in counts):
        raise ValueError(f"levels.replicas: got {counts}, wanted {stages} of 1 to {MAX_REPLICAS} in each level")
