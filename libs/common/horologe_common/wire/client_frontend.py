"""Client - frontend."""

from __future__ import annotations

import msgspec

from horologe_common.models import ModelSpec
from horologe_common.status import Status
from horologe_common.wire.message import Message, Tensor


class Predict(Message, frozen=True, tag=1):
    """Run `model` on `inputs`. `budget_ns` 0: the model's own SLO, or best effort where it has none.

    `application`: on whose behalf. Execution times are learned per model and application. Without a `model` it is the
    application that is asked, which chooses by what it has learned for this `context` (a user, a session).
    """

    id: int
    model: str
    version: str
    budget_ns: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[str, ...] = ()
    application: str = ""
    context: str = ""


class Answer(Message, frozen=True, tag=2):
    """The one answer to a Predict (to a client) or a Query (to a frontend).

    `confidence` and the fields after it are set for applications only. `prediction` identifies the answer in feedback.
    `inputs_retained` asks a frontend to keep the staged inputs until a Release.
    """

    id: int
    status: int
    outputs: tuple[Tensor, ...] = ()
    reason: str = ""
    retry_after_ns: int = 0
    model: str = ""
    version: str = ""
    queue_ns: int = 0
    exec_ns: int = 0
    batch_size: int = 0
    cached: bool = False
    confidence: float = 0.0
    """Share of the models asked that agree, the least of all rows."""
    models: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """Asked, and not there in time."""
    defaulted: bool = False
    """Whether any row is the declared default."""
    prediction: bytes = b""
    inputs_retained: bool = False


class Cancel(Message, frozen=True, tag=3):
    """Forget these requests; nobody waits for their answers. The same message on every link."""

    ids: tuple[int, ...]


class ModelInfo(Message, frozen=True, tag=4):
    """Ask for the models; `model` empty: all of them. With an `application`: its signature, as if it were a model."""

    id: int
    model: str = ""
    application: str = ""


class ModelState(Message, frozen=True):
    """A model version in the repository. `state` is READY, LOADING or UNAVAILABLE (then with a reason)."""

    spec: ModelSpec
    state: str = "READY"
    reason: str = ""


class Models(Message, frozen=True, tag=5):
    """Answer to ModelInfo and Admit; with id 0, the controller's announcement of a changed catalogue."""

    id: int
    models: tuple[ModelState, ...]
    status: int = Status.OK
    reason: str = ""


class Admit(Message, frozen=True, tag=6):
    """Repository load (`admitted`) or unload of a model. Residency on devices stays the controller's business."""

    id: int
    model: str
    version: str
    admitted: bool


class Describe(Message, frozen=True, tag=7):
    """Ask for the state of the cluster; with a `model`, a key `name/version`, also how long it is expected to take."""

    id: int
    model: str = ""


class ShareState(Message, frozen=True):
    """What the controller believes of one share of a device."""

    worker: str
    share: int
    device: str
    pages_total: int
    pages_free: int
    resident: tuple[str, ...]
    actions_pending: int
    free_at_ns: int
    """Relative to now."""
    exec_ns: dict[int, int] = msgspec.field(default_factory=dict)
    """By batch size, of the model that was asked about: measured lately, else what the worker's profile says."""
    load_ns: int = 0


class Description(Message, frozen=True, tag=8):
    id: int
    shares: tuple[ShareState, ...]
    scheduler: str
    requests_pending: int
