"""Controller - worker."""

from __future__ import annotations

from horologe_common.models import ModelSpec, Profile
from horologe_common.wire.holder_worker import RowStatus
from horologe_common.wire.message import Message


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
    """Finish what is in flight, take nothing new. From a worker: that is what it does."""
