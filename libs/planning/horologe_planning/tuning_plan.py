"""The plan that the tuner carries out: stages with their replicas, and the traffic that they were planned for.

`horologe plan --json` writes it, `horologe plan --apply` sends it to a running tuner.
"""

from __future__ import annotations

import itertools

import msgspec

from horologe_common.clock import s
from horologe_planning.envelope import TrafficEnvelope
from horologe_planning.plan import Plan

MAX_REPLICAS = 10_000
MAX_STAGES = 256
MAX_LEVELS = 1024
MAX_BATCH = 1 << 20
MAX_SLO_NS = s(86_400)
SMALLEST, LARGEST = 1e-9, 1e12
"""Bounds of rates, factors and throughputs. Products and quotients of a few of them are finite."""
NAME_LIMIT = 512
"""Characters of a name in a plan."""


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
        _check_name("pipeline", self.pipeline)
        if not 1 <= len(self.stages) <= MAX_STAGES:
            raise ValueError(f"stages: got {len(self.stages)}, wanted 1 to {MAX_STAGES}")
        if not 0 < self.slo_ns <= MAX_SLO_NS:
            raise ValueError(f"slo_ns: got {self.slo_ns}, wanted a positive number of nanoseconds up to {MAX_SLO_NS}")
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


def tuning_plan(plan: Plan) -> TuningPlan:
    """Return a plan of whole devices as the tuner reads it."""
    assert plan.envelope is not None
    stages = tuple(
        StageTarget(p.stage, p.model, p.hardware, p.max_batch, p.replicas, p.throughput, p.scale_factor)
        for p in plan.placements
    )
    levels = tuple(ProvisioningLevel(level.factor, level.replicas) for level in plan.levels)
    return TuningPlan(plan.name, plan.slo_ns, plan.rate, plan.envelope, stages, plan.entry, levels, plan.pooled)


def parse_plan(document: bytes | str) -> TuningPlan:
    """Return the plan in a JSON document. Raises ValueError for one that is not valid."""
    try:
        plan = msgspec.json.decode(document, type=TuningPlan)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"plan: {error}") from error
    plan.validate()
    return plan


def _check_stage(stage: StageTarget) -> None:
    place = f"stage {stage.stage!r}: "
    _check_name(f"{place}stage", stage.stage)
    _check_name(f"{place}model", stage.model)
    if len(stage.hardware) > NAME_LIMIT:
        raise ValueError(f"{place}hardware: got {len(stage.hardware)} characters, wanted at most {NAME_LIMIT}")
    if not 1 <= stage.replicas <= MAX_REPLICAS:
        raise ValueError(f"{place}replicas: got {stage.replicas}, wanted 1 to {MAX_REPLICAS}")
    if not 1 <= stage.max_batch <= MAX_BATCH:
        raise ValueError(f"{place}max_batch: got {stage.max_batch}, wanted 1 to {MAX_BATCH}")
    _check_positive(f"{place}throughput", stage.throughput)
    _check_positive(f"{place}scale_factor", stage.scale_factor)


def _check_name(field: str, name: str) -> None:
    if not 1 <= len(name) <= NAME_LIMIT or not name.isprintable():
        raise ValueError(f"{field}: got {name[:NAME_LIMIT]!r}, wanted 1 to {NAME_LIMIT} printable characters")


def _check_positive(field: str, value: float) -> None:
    if not SMALLEST <= value <= LARGEST:
        raise ValueError(f"{field}: got {value}, wanted a positive number from {SMALLEST:g} to {LARGEST:g}")


def _check_levels(levels: tuple[ProvisioningLevel, ...], stages: int) -> None:
    if len(levels) > MAX_LEVELS:
        raise ValueError(f"levels: got {len(levels)}, wanted at most {MAX_LEVELS}")
    factors, counts = [level.factor for level in levels], [n for level in levels for n in level.replicas]
    if not all(low < high <= LARGEST for low, high in itertools.pairwise([SMALLEST, *factors])):
        raise ValueError(f"levels.factor: got {factors}, wanted positive numbers up to {LARGEST:g} that ascend")
    if any(len(level.replicas) != stages for level in levels) or not all(1 <= n <= MAX_REPLICAS for n in counts):
        raise ValueError(f"levels.replicas: got {counts}, wanted {stages} of 1 to {MAX_REPLICAS} in each level")
