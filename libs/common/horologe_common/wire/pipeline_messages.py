"""Client - frontend - selector: what is known about a pipeline."""

from __future__ import annotations

from typing import TypeAlias

from horologe_common.pipelines import PipelineStructure
from horologe_common.status import Status
from horologe_common.wire.message import Message


class PipelineInfo(Message, frozen=True, tag=77):
    """Request the structure and the measurements of a pipeline. The answer is PipelineState."""

    id: int
    name: str


class StageState(Message, frozen=True):
    """Measurements of a stage since the selector started. Latencies include queueing."""

    name: str
    calls: int
    """Calls with outputs."""
    p50_ns: int
    p99_ns: int
    drops: int
    """Calls without outputs: refused, late, lost or failed."""
    critical: int
    """Queries whose critical path contains this stage."""


class PipelineState(Message, frozen=True, tag=78):
    """Answer to PipelineInfo. `structure` is learned from recent queries; None if there were none."""

    id: int
    status: int = Status.OK
    reason: str = ""
    structure: PipelineStructure | None = None
    stages: tuple[StageState, ...] = ()
    answered: int = 0
    """Queries that were answered since the selector started."""
    p50_ns: int = 0
    """Latency of answered queries."""
    p99_ns: int = 0
    failed: tuple[tuple[str, int], ...] = ()
    """Other queries by status."""


PipelineMessage: TypeAlias = PipelineInfo | PipelineState
