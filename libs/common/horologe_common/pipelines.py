"""Structure of a pipeline: its stages, how often queries visit them, and its deadline (InferLine sections 2 and 3)."""

from __future__ import annotations

from functools import cached_property

import msgspec

from horologe_common.model_limits import DURATION_MAX_NS

NAME_LIMIT = 128
STAGES_LIMIT = 64
QUERIES_MAX = 1 << 62
FAN_OUT_MAX = 1e6
PIPELINE_RUNTIME = "pipeline"
"""The `runtime` in the signature of a pipeline."""


class PipelineStage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Calls of a driver to one model at one place. The stage starts when all its visited parents have answered."""

    name: str
    """Unique in the pipeline: the model's name, `model#2` for its second place in the driver."""
    model: str
    parents: tuple[str, ...]
    """Stages whose answers the stage waits for. Empty: it starts with the query."""
    visits: float
    """Probability of a visit: given that a parent was visited, or, without parents, given the query."""
    fan_out: float
    """Mean calls per visit."""
    variants: tuple[str, ...] = ()
    """Models that can replace `model`."""


class PipelineStructure(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, dict=True):
    """Directed acyclic graph of stages in topological order. `queries`: number of traces that it was learned from."""

    name: str
    slo_ns: int
    stages: tuple[PipelineStage, ...]
    queries: int = 0

    def scale_factor(self, stage: str) -> float:
        """Return the mean calls to a stage per query (s_m in InferLine section 3). Raises KeyError if unknown.

        Visits of several parents count as independent.
        """
        return self._visit_probabilities[stage] * self._by_name[stage].fan_out

    def visit_probability(self, stage: str) -> float:
        """Return the probability that a query visits the stage. Raises KeyError if the stage is unknown."""
        return self._visit_probabilities[stage]

    @cached_property
    def _by_name(self) -> dict[str, PipelineStage]:
        return {stage.name: stage for stage in self.stages}

    @cached_property
    def _visit_probabilities(self) -> dict[str, float]:
        probabilities: dict[str, float] = {}
        for stage in self.stages:
            missed = 1.0
            for parent in stage.parents:
                missed *= 1 - probabilities[parent]
            probabilities[stage.name] = stage.visits * (1 - missed if stage.parents else 1.0)
        return probabilities

    def validate(self) -> None:
        """Raise ValueError, with the field, the value and what was wanted, if the structure is invalid."""
        _check_name("name", self.name)
        if not 0 < self.slo_ns <= DURATION_MAX_NS:
            raise ValueError(f"slo_ns: got {self.slo_ns}, wanted more than 0, at most {DURATION_MAX_NS}")
        if not 0 <= self.queries <= QUERIES_MAX:
            raise ValueError(f"queries: got {self.queries}, wanted at least 0, at most {QUERIES_MAX}")
        if not 1 <= len(self.stages) <= STAGES_LIMIT:
            raise ValueError(f"stages: got {len(self.stages)}, wanted 1 to {STAGES_LIMIT}")
        earlier: dict[str, bool] = {}
        for stage in self.stages:
            _check_stage(stage, earlier)
            earlier[stage.name] = True


def _check_stage(stage: PipelineStage, earlier: dict[str, bool]) -> None:
    """Raise ValueError if a stage is invalid. `earlier`: the stages before it."""
    field = f"stages[{len(earlier)}]"
    for part in ("name", "model"):
        _check_name(f"{field}.{part}", getattr(stage, part))
    if stage.name in earlier:
        raise ValueError(f"{field}.name: got {stage.name!r} twice, wanted each once")
    for parent in stage.parents:
        if parent not in earlier:
            raise ValueError(f"{field}.parents: got {parent!r}, wanted stages before {stage.name!r}")
    if len(set(stage.parents)) != len(stage.parents):
        raise ValueError(f"{field}.parents: got {list(stage.parents)}, wanted each once")
    if not 0 <= stage.visits <= 1:
        raise ValueError(f"{field}.visits: got {stage.visits}, wanted 0 to 1")
    if not 1 <= stage.fan_out <= FAN_OUT_MAX:
        raise ValueError(f"{field}.fan_out: got {stage.fan_out}, wanted a finite number of at least 1")


def _check_name(field: str, text: str) -> None:
    if not 0 < len(text) <= NAME_LIMIT or not text.isprintable():
        raise ValueError(f"{field}: got {text[:NAME_LIMIT]!r}, wanted 1 to {NAME_LIMIT} printable characters")
