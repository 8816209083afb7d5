"""Client - frontend - selector: applications, feedback, and what is known about pipelines."""

from __future__ import annotations

from typing import TypeAlias

from horologe_common.applications import Application
from horologe_common.pipelines import PipelineStructure
from horologe_common.status import Status
from horologe_common.wire.message import Message, Tensor
from horologe_common.wire.request_messages import Query


class ModelStatistics(Message, frozen=True):
    """Statistics of a model of an application since the selector started. `weight` is its policy's."""

    model: str
    weight: float = 0.0
    shadow: bool = False
    answered: int = 0
    missing: int = 0
    """Queries to which the model had no answer in time."""
    agreed: int = 0
    """Answers of the model that equal the application's answer."""
    observations: int = 0
    """Answers that feedback has judged."""
    loss: float = 0.0
    """Sum of the losses of these observations."""


class ApplicationState(Message, frozen=True):
    """A declared application. `statistics` is set only if the application was requested by name."""

    application: Application
    revision: int
    statistics: tuple[ModelStatistics, ...] = ()
    contexts: int = 0
    unavailable: str = ""
    """Why it is not served, such as a damaged record; then only the name of `application` is known. Empty: it is."""


class Applications(Message, frozen=True, tag=23):
    """Answer to ApplicationInfo, Declare, Withdraw and Rollback. With id 0: announcement of all applications."""

    id: int
    applications: tuple[ApplicationState, ...]
    status: int = Status.OK
    reason: str = ""
    number: int = 0
    """Number of the announcement, counted by the selector from 1. Receivers ignore one after a larger number."""


class ApplicationInfo(Message, frozen=True, tag=24):
    """Request all applications, or the one called `name` with the statistics of its models in this `context`."""

    id: int
    name: str = ""
    context: str = ""


class Declare(Message, frozen=True, tag=25):
    """Create an application or replace the one of this name. The answer comes when it is stored."""

    id: int
    application: Application


class Withdraw(Message, frozen=True, tag=26):
    """Delete an application and all that its policy has learned."""

    id: int
    name: str


class Rollback(Message, frozen=True, tag=27):
    """Restore the declaration before the last Declare or Rollback."""

    id: int
    name: str


class Observation(Message, frozen=True):
    """The true value for each row of a request. `prediction` is the id in its Answer.

    If the prediction is not cached, it is made again from `inputs`, which may also replace the id. A frontend replaces
    `inputs` by a `query` and holds them.
    """

    truths: tuple[float, ...]
    prediction: bytes = b""
    context: str = ""
    inputs: tuple[Tensor, ...] = ()
    query: Query | None = None


class Feedback(Message, frozen=True, tag=28):
    """Observations on answers of an application. The answer is Acknowledged."""

    id: int
    application: str
    items: tuple[Observation, ...]


class Acknowledged(Message, frozen=True, tag=29):
    """Answer to Feedback, with a status for each item. OK: what was learned from the item is stored."""

    id: int
    statuses: tuple[int, ...]
    reason: str = ""
    retry_after_ns: int = 0


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


ApplicationMessage: TypeAlias = (
    Applications
    | ApplicationInfo
    | Declare
    | Withdraw
    | Rollback
    | Feedback
    | Acknowledged
    | PipelineInfo
    | PipelineState
)
