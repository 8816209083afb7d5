"""Client - frontend - selector: applications."""

from __future__ import annotations

from horologe_common.applications import Application
from horologe_common.status import Status
from horologe_common.wire.frontend_selector import Query
from horologe_common.wire.message import Message, Tensor


class ModelStatistics(Message, frozen=True):
    """How a model of an application has done, since the selector started; `weight` as its policy sees it."""

    model: str
    weight: float = 0.0
    shadow: bool = False
    answered: int = 0
    missing: int = 0
    agreed: int = 0
    """Of `answered`, those equal to what the application answered."""
    observations: int = 0
    loss: float = 0.0
    """Sum over the observations."""


class ApplicationState(Message, frozen=True):
    """A declared application. `statistics` only where it was asked for by name."""

    application: Application
    revision: int
    statistics: tuple[ModelStatistics, ...] = ()
    contexts: int = 0


class Applications(Message, frozen=True, tag=23):
    """Answer to the four below; with id 0, the selector's announcement, which is complete."""

    id: int
    applications: tuple[ApplicationState, ...]
    status: int = Status.OK
    reason: str = ""


class ApplicationInfo(Message, frozen=True, tag=24):
    """Ask for the applications, or with a `name` for the standing of its models in this `context`."""

    id: int
    name: str = ""
    context: str = ""


class Declare(Message, frozen=True, tag=25):
    """Create the application, or replace the one of this name. Answered when it is kept."""

    id: int
    application: Application


class Withdraw(Message, frozen=True, tag=26):
    """Delete an application and what it has learned."""

    id: int
    name: str


class Rollback(Message, frozen=True, tag=27):
    """Declare again what the application was before its last Declare or Rollback."""

    id: int
    name: str


class Observation(Message, frozen=True):
    """What turned out to be true, a value for each row. `prediction`: as the Answer named it.

    With `inputs` in its place or beside it, what is not in the cache any more is predicted again; a frontend passes
    them on as a `query`, its inputs staged.
    """

    truths: tuple[float, ...]
    prediction: bytes = b""
    context: str = ""
    inputs: tuple[Tensor, ...] = ()
    query: Query | None = None


class Feedback(Message, frozen=True, tag=28):
    id: int
    application: str
    items: tuple[Observation, ...]


class Acknowledged(Message, frozen=True, tag=29):
    """Answer to Feedback, a status for each item. OK: what was learned from it is durable."""

    id: int
    statuses: tuple[int, ...]
    reason: str = ""
    retry_after_ns: int = 0
