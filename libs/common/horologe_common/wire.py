"""Every message that crosses a socket. Append-only: fields are added at the end, with defaults; tags never change.

A packet is a multipart message `[header][body]...`. The header is a msgpack array of letters; a letter is
`[to, sender, [message...]]`, so that everything one turn has for a peer travels in one packet. Tensor bytes
follow as body frames in the order in which the messages name them (frames.py). Budgets are remaining
nanoseconds; `*_ns` times of actions are in the worker's monotonic clock.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from horologe_common.applications import Application
from horologe_common.models import ModelSpec, Profile
from horologe_common.status import HorologeError, InvalidInput, Status, TooLarge

if TYPE_CHECKING:
    from collections.abc import Callable

PROTOCOL = 1
HEADER_LIMIT = 64 << 10
"""From a client: a header this long is refused undecoded (decoding 2 MB of header took 115 ms)."""
PEER_HEADER_LIMIT = 16 << 20


class Message(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Base of all: encoded as `[tag, field, ...]`."""


class Tensor(Message, frozen=True):
    """Header of one tensor; its `nbytes` bytes (little-endian, row-major) follow in the body."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    nbytes: int


# client - frontend


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

    From `confidence` on: of applications only. `prediction`: what feedback names it by. `lingers`, to a frontend: the
    staged inputs are still needed, a Release will tell.
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
    lingers: bool = False


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
    exec_ns: dict[int, int] = {}
    """By batch size, of the model that was asked about: measured lately, else what the worker's profile says."""
    load_ns: int = 0


class Description(Message, frozen=True, tag=8):
    id: int
    shares: tuple[ShareState, ...]
    scheduler: str
    requests_pending: int


# links: the handshake of every connection, and the directory workers follow


class Hello(Message, frozen=True, tag=10):
    """First message of whoever connects, and again after every reconnect."""

    protocol: int
    addresses: tuple[str, ...]
    host: str = ""
    endpoint: str = ""
    """Where holders may be connected to, if this process is one."""
    capabilities: tuple[str, ...] = ()


class Welcome(Message, frozen=True, tag=11):
    protocol: int
    addresses: tuple[str, ...]
    host: str = ""
    capabilities: tuple[str, ...] = ()


class Directory(Message, frozen=True, tag=12):
    """Endpoints of all holders; whoever hosts a worker connects to those it does not know yet."""

    endpoints: tuple[str, ...]


class Rejected(Message, frozen=True, tag=13):
    """The handshake or the packet could not be accepted; the sender says no more than this."""

    status: int
    reason: str = ""


# frontend - selector


class Query(Message, frozen=True, tag=20):
    """A validated request. Its inputs are staged at the sender under `id`; `input_hash` only if caching is on.

    With an empty `model` it is for the `application`; it has an `input_hash` then, for feedback to join.

    Requests of a model with variable dimensions share a batch only if their `alike` is equal, which is 0 where they are
    padded. `length` is the size of the input in those dimensions, 0 where all are fixed.
    """

    id: int
    model: str
    budget_ns: int
    rows: int
    input_hash: bytes = b""
    best_effort: bool = False
    alike: int = 0
    length: int = 0
    application: str = ""
    context: str = ""


class Release(Message, frozen=True, tag=21):
    """The staged inputs under these ids are not needed any more."""

    ids: tuple[int, ...]


# client - frontend - selector: applications


class ModelStanding(Message, frozen=True):
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
    """A declared application. `standings` only where it was asked for by name."""

    application: Application
    revision: int
    standings: tuple[ModelStanding, ...] = ()
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


# selector (profiler) - controller


class Submit(Message, frozen=True, tag=30):
    """One piece of work on `model` (a key `name/version`); its inputs are staged at `holder` under `input_id`.

    `solo`: never in a batch with others, so that its time is its own.
    """

    id: int
    model: str
    budget_ns: int
    rows: int
    holder: str
    input_id: int
    best_effort: bool = False
    alike: int = 0
    length: int = 0
    application: str = ""
    solo: bool = False


class Outcome(Message, frozen=True, tag=31):
    """The end of a Submit that brings no outputs: refused, late, lost, failed."""

    id: int
    status: int
    reason: str = ""
    retry_after_ns: int = 0


# controller - holder - worker - selector


class Dispatch(Message, frozen=True, tag=40):
    """Ship these staged inputs to the worker that will run `action_id`."""

    action_id: int
    worker: str
    input_ids: tuple[int, ...]


class Shipped(Message, frozen=True):
    input_id: int
    inputs: tuple[Tensor, ...]


class Ship(Message, frozen=True, tag=41):
    """Inputs of some rows of an action. An id the holder no longer has is simply absent."""

    action_id: int
    holder: str
    items: tuple[Shipped, ...]
    missing: tuple[int, ...] = ()


class RowStatus(Message, frozen=True):
    """`rows` consecutive rows of the outputs belong to submit `id`; none if `status` is not OK."""

    id: int
    rows: int
    status: int = Status.OK
    reason: str = ""


class Outputs(Message, frozen=True, tag=42):
    """Outputs of the rows of one action that belong to one submitter, concatenated along dimension 0."""

    action_id: int
    items: tuple[RowStatus, ...]
    outputs: tuple[Tensor, ...]
    model: str = ""
    batch_size: int = 0
    begin_ns: int = 0
    end_ns: int = 0


# controller - worker


class Row(Message, frozen=True):
    """`rows` rows of a batch: input `input_id` at holder `parties[holder]`, for `parties[submitter]`'s submit."""

    holder: int
    input_id: int
    submitter: int
    submit_id: int
    rows: int


class Infer(Message, frozen=True, tag=50):
    """Run a batch inside the window [earliest_ns, latest_ns] (of EXEC's begin). `batch_size`: the compiled size."""

    action_id: int
    share: int
    model: str
    batch_size: int
    rows: tuple[Row, ...]
    parties: tuple[str, ...]
    earliest_ns: int
    latest_ns: int
    expected_ns: int


class Load(Message, frozen=True, tag=51):
    """Copy the model's weights into pages. `expected_ns` is the predicted duration."""

    action_id: int
    share: int
    model: str
    earliest_ns: int
    latest_ns: int
    expected_ns: int


class Unload(Message, frozen=True, tag=52):
    """Free the model's pages. Always succeeds (Clockwork section 5.2)."""

    action_id: int
    share: int
    model: str


class Result(Message, frozen=True, tag=53):
    """What happened to an action. `ready_ns`: when its last input had arrived.

    `rows`: only those not OK; their `id` is the row's place in the Infer.
    """

    action_id: int
    status: int
    begin_ns: int
    end_ns: int
    device_ns: int = 0
    ready_ns: int = 0
    rows: tuple[RowStatus, ...] = ()
    reason: str = ""


class Ping(Message, frozen=True, tag=54):
    sent_ns: int


class Pong(Message, frozen=True, tag=55):
    """`sent_ns` is the Ping's; `peer_ns` the worker's clock when it answered."""

    sent_ns: int
    peer_ns: int


class Share(Message, frozen=True):
    """A share of a device that a worker owns; a whole device is one share. `resident`: model keys in its pages."""

    share: int
    device: str
    pages_total: int
    resident: tuple[str, ...] = ()
    loading: tuple[tuple[str, int], ...] = ()
    """Model keys that have their pages but cannot run yet, and the LOAD whose Result will tell."""


class ModelReport(Message, frozen=True):
    """A model as a worker found it in its repository; `profile` None when it cannot be served, with the reason."""

    spec: ModelSpec
    profile: Profile | None
    reason: str = ""


class Register(Message, frozen=True, tag=56):
    """A worker's first message to a controller incarnation, and again when what it can serve has changed."""

    shares: tuple[Share, ...]
    models: tuple[ModelReport, ...]
    running: tuple[int, ...] = ()
    """Ids of actions accepted and not finished, from whichever controller: for whoever reads a recording."""


class Scan(Message, frozen=True, tag=57):
    """Read the model again from the repository and Register what was found."""

    model: str


class Drain(Message, frozen=True, tag=58):
    """Finish what is in flight, take nothing new."""


# holder - profiler - controller


class Sample(Message, frozen=True, tag=60):
    """The inputs of a finished request, before the holder frees them. `model` is a key `name/version`.

    Nobody waits for it: a profiler may run them again, alone, to learn how long they take.
    """

    model: str
    inputs: tuple[Tensor, ...]
    rows: int = 1
    length: int = 0
    application: str = ""


class Durations(Message, frozen=True):
    """Histogram of the times that single rows took alone: `counts[i]` from `edges_ns[i]` up to `edges_ns[i + 1]`."""

    application: str
    length: int
    """Of rows up to this long and longer than those of the part before; 0: of any length."""
    edges_ns: tuple[int, ...]
    counts: tuple[int, ...]


class Distributions(Message, frozen=True, tag=61):
    """All that is known of how long a model takes; replaces what was said of it before.

    A batch of k rows, the longest of length l, takes `base_ns` + `row_ns_per_length` * k * l (ORLOJ, eq. 3). Where
    length does not matter `row_ns_per_length` is 0, and a row that takes t alone has k times (t - `base_ns`).
    """

    model: str
    base_ns: int
    row_ns_per_length: float = 0.0
    parts: tuple[Durations, ...] = ()


AnyMessage: TypeAlias = (
    Predict | Answer | Cancel | ModelInfo | Models | Admit | Describe | Description
    | Hello | Welcome | Directory | Rejected
    | Query | Release | Submit | Outcome | Dispatch | Ship | Outputs
    | Infer | Load | Unload | Result | Ping | Pong | Register | Scan | Drain
    | Sample | Distributions
    | Applications | ApplicationInfo | Declare | Withdraw | Rollback | Feedback | Acknowledged
)  # fmt: skip


class Letter(Message, frozen=True):
    """Messages of one turn from one core to another."""

    to: str
    sender: str
    messages: list[AnyMessage]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Letter])


def encode(letters: list[Letter]) -> bytes:
    return _encoder.encode(letters)


def decode(header: bytes | memoryview, limit: int = PEER_HEADER_LIMIT) -> list[Letter]:
    """Letters of a packet. Raises `TooLarge` over `limit` bytes and `InvalidInput` for anything not of this form."""
    if len(header) > limit:
        raise TooLarge(f"header: got {len(header)} bytes, at most {limit}")
    try:
        return _decoder.decode(header)
    except (msgspec.MsgspecError, HorologeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"header: {error}") from error


def tensors(message: AnyMessage) -> tuple[Tensor, ...]:
    """Headers of the tensors whose bytes follow this message, in order."""
    headers = _TENSORS.get(type(message))
    return headers(message) if headers else ()


_TENSORS: dict[type, Callable[[Any], tuple[Tensor, ...]]] = {
    Predict: attrgetter("inputs"),
    Answer: attrgetter("outputs"),
    Outputs: attrgetter("outputs"),
    Sample: attrgetter("inputs"),
    Feedback: lambda feedback: tuple(tensor for item in feedback.items for tensor in item.inputs),
    Ship: lambda ship: tuple(tensor for item in ship.items for tensor in item.inputs),
}
