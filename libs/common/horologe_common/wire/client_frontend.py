"""Client - frontend: requests, models and the state of the cluster."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from horologe_common.clock import s
from horologe_common.models import ModelSpec
from horologe_common.status import Status
from horologe_common.wire.controller_worker import DeviceInfo
from horologe_common.wire.message import Message, Tensor

STREAM_WINDOW = 8
"""Items of a stream that are made, and that its receiver has not taken."""
STREAM_IDLE_NS = s(30)
"""Time in which a receiver must take an item when it has room for no other. Then its stream ends."""


class StreamLimits(Message, frozen=True):
    """A request for a stream: the time until its first item, and between two items. 0: as the model declares."""

    first_ns: int = 0
    gap_ns: int = 0


class Predict(Message, frozen=True, tag=1):
    """Run `model` on `inputs` within `budget_ns`. 0: within the model's SLO, or best effort if it has none.

    `application` names the source of the request: execution times are measured per model and application. With an empty
    `model` the application itself answers. It uses what its policy has learned for `context` (a user or session).
    """

    id: int
    model: str
    version: str
    budget_ns: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[str, ...] = ()
    application: str = ""
    context: str = ""
    content_hash: bool = False
    """True if the answer must name the contents of the models."""
    sent_ns: int = 0
    """The client's monotonic clock when it sent this. The differences between its requests show how long each waited
    in sockets. 0: unknown."""
    name: str = ""
    """The client's own name of the request, such as the `id` of an HTTP request. Only recordings use it."""
    traceparent: str = ""
    """Trace of the sender, as in the header of W3C Trace Context. Empty: the sender does not trace the request."""
    client: str = ""
    """Client that a gateway sends the request for, such as an HTTP address. Ignored from clients themselves."""
    stream: StreamLimits | None = None
    """Send the outputs as a stream of items. None: the outputs are one answer."""
    waited_ns: int = 0
    """Time for which a gateway has held the request before it sent this. The budget is of the time before."""


class Answer(Message, frozen=True, tag=2):
    """The only answer to a Predict (to a client) or a Query (to a frontend). Before it, a stream has its items, which
    are Answers with `more`. The last item may be in the answer itself: then this has outputs.

    `confidence` and the fields after it are set for applications only. `prediction` identifies the answer in feedback.
    `inputs_retained` asks a frontend to keep the inputs until a Release.
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
    """Share of the models that agree with the answer, in the row where it is lowest."""
    models: tuple[str, ...] = ()
    """Models whose predictions were used."""
    missing: tuple[str, ...] = ()
    """Models without a prediction in time."""
    defaulted: bool = False
    """True if a row holds the declared default."""
    prediction: bytes = b""
    inputs_retained: bool = False
    content_hashes: tuple[str, ...] = ()
    """If requested: the hash of the content that answered; for an application those of `models`, in their order."""
    more: bool = False
    """True for an item of a stream: the answer follows."""
    refuses_ns: int = 0
    place_ns: int = 0
    """As in Outcome, for a request that is refused."""


class ItemsTaken(Message, frozen=True, tag=9):
    """The receiver of a stream has taken `items` of it so far: as many more may be made. The same on every link.

    Before the first one, `STREAM_WINDOW` (8) items are made. `id` is that of the request on this link.
    """

    id: int
    items: int


class Cancel(Message, frozen=True, tag=3):
    """Drop these requests: their answers are not needed. The message is the same on every link."""

    ids: tuple[int, ...]


class ModelInfo(Message, frozen=True, tag=4):
    """Request the state of a model, or of all if `model` is empty. With `application`: its signature as a model."""

    id: int
    model: str = ""
    application: str = ""


class ModelState(Message, frozen=True):
    """A model version in the repository."""

    spec: ModelSpec
    """Name, version, runtime, inputs, outputs, batch sizes, deadline (`slo_ns`) and further fields."""
    state: str = "READY"
    """READY: requests are served. LOADING: workers load it, or its workers are away. Requests wait until their
    deadlines; until the signature is known they are REFUSED. UNAVAILABLE: unloaded, or not servable."""
    reason: str = ""
    """Why it is not READY, and what is done to it while it is LOADING, or why some workers do not serve it. Empty: no
    remark."""
    traffic: float = 0.0
    """Part of the requests without a version that this version gets. If no version of a model has one, receivers give
    all requests to the newest READY version."""

    def explain_state(self) -> str:
        """Return state and reason as a sentence, such as `model 'm/1' is unavailable: unloaded`."""
        return f"model {self.spec.key.rstrip('/')!r} is {self.state.lower()}{self.reason and f': {self.reason}'}"


class Models(Message, frozen=True, tag=5):
    """Answer to ModelInfo and Admit. With id 0: the controller's announcement that its catalogue has changed."""

    id: int
    models: tuple[ModelState, ...]
    status: int = Status.OK
    reason: str = ""
    number: int = 0
    """Number of the announcement, counted by the controller from 1. Receivers ignore one after a larger number."""
    incomplete: str = ""
    """Why models may be missing, such as workers that have not registered. Empty: none are."""


class Admit(Message, frozen=True, tag=6):
    """Load a model from the repository (`admitted`) or unload it. The controller decides which devices hold it.

    With a `rollout`, change which version requests without a version reach. A version that is not READY is loaded
    before. promote: to `version`; empty: to the newest, and to newer ones when they are ready. rollback: end the
    canary, else return to the version before. canary: `version` gets the part `weight` of the requests.
    """

    id: int
    model: str
    version: str
    admitted: bool
    rollout: str = ""
    weight: float = 0.0


class Describe(Message, frozen=True, tag=7):
    """Request the state of the cluster; with a `model` (a key `name/version`), also its expected times."""

    id: int
    model: str = ""


class ShareState(Message, frozen=True):
    """The controller's view of a share of a device."""

    worker: str
    share: int
    device: str
    pages_total: int
    pages_free: float
    resident: tuple[str, ...]
    actions_pending: int
    free_at_ns: int
    """Time until the share is expected to be idle."""
    exec_ns: dict[int, int] = msgspec.field(default_factory=dict)
    """Execution time of the requested model by batch size: recent measurements, else the worker's profile."""
    load_ns: int = 0
    hardware: str = ""
    """Hardware type, by which plans name pools."""
    kept: tuple[str, ...] = ()
    """Models that the tuner's plan keeps resident."""
    percent: float = 100.0
    """Part of the device's compute resources that the share may use."""
    device_info: DeviceInfo = DeviceInfo()
    """The physical device. Shares with the same id are neighbours."""


class Description(Message, frozen=True, tag=8):
    """Answer to Describe."""

    id: int
    shares: tuple[ShareState, ...]
    scheduler: str
    requests_pending: int
    scheduler_reason: str = ""
    """Unused: always empty."""
    worst_served: str = ""
    """The model of which the smallest part is served, and why. Empty: all are served well."""


ClientMessage: TypeAlias = Predict | Answer | ItemsTaken | Cancel | ModelInfo | Models | Admit | Describe | Description
