"""Controller - worker: actions and their results."""

from __future__ import annotations

from typing import TypeAlias

from horologe_common.models import ModelSpec, Profile
from horologe_common.wire.holder_messages import RowStatus
from horologe_common.wire.message import Message


class Row(Message, frozen=True):
    """`rows` rows of a batch: input `input_id` at holder `parties[holder]`, for submit `submit_id` of a submitter."""

    holder: int
    input_id: int
    submitter: int
    """Index of the submitter's address in `parties`."""
    submit_id: int
    rows: int
    stream: int = 0
    """Number of a stream of the submitter, of which the row is a step. Later steps have no inputs. 0: no stream."""
    step: int = 0
    """Number of the step, from 1."""


class Infer(Message, frozen=True, tag=50):
    """Run a batch. Its execution must begin in the window [`earliest_ns`, `latest_ns`].

    `batch_size` is the compiled size. `expected_ns` is the predicted duration.
    """

    action_id: int
    share: int
    model: str
    batch_size: int
    rows: tuple[Row, ...]
    parties: tuple[str, ...]
    """Addresses of the holders and submitters of the rows."""
    earliest_ns: int
    latest_ns: int
    expected_ns: int
    slowness: float = 1.0
    """Profile of the model on this share over the shortest one of all shares. Only known for a run of a profiler."""


class Load(Message, frozen=True, tag=51):
    """Copy the model's weights into pages. `expected_ns` is the predicted duration."""

    action_id: int
    share: int
    model: str
    earliest_ns: int
    latest_ns: int
    expected_ns: int
    registration: int = 0
    """Number of the worker's last Register that the controller had. Workers do not carry out a LOAD or UNLOAD that was
    sent before they registered on the present connection. 0: the sender does not number them."""


class Unload(Message, frozen=True, tag=52):
    """Free the model's pages. It always succeeds (Clockwork section 5.2).

    A worker sends it to its controllers when it has unloaded a model whose process has ended. `action_id` is then that
    of the failed INFER.
    """

    action_id: int
    share: int
    model: str
    registration: int = 0
    """As in Load."""


class Result(Message, frozen=True, tag=53):
    """The result of an action. `ready_ns` is the time at which its last input arrived.

    `rows` lists only the rows that are not OK; their `id` is the index of the row in the Infer.
    """

    action_id: int
    status: int
    begin_ns: int
    end_ns: int
    device_ns: int = 0
    ready_ns: int = 0
    rows: tuple[RowStatus, ...] = ()
    reason: str = ""
    lanes_end_ns: tuple[int, ...] = ()
    """Ends of INPUT and OUTPUT. Empty if the model does them in EXEC, or did not run."""


class Ping(Message, frozen=True, tag=54):
    """Measure the round trip to a peer, and the offset of its clock. The answer is Pong."""

    sent_ns: int


class Pong(Message, frozen=True, tag=55):
    """`sent_ns` is the Ping's; `peer_ns` is the clock of the peer when it answered.

    `reserved_ns`: the return latency that a controller reserves for each request.
    """

    sent_ns: int
    peer_ns: int
    reserved_ns: int = 0


class DeviceInfo(Message, frozen=True):
    """A physical device. Workers that report the same `id` own shares of one device and are neighbours."""

    id: str = ""
    """Empty: the worker has a device of its own."""
    type: str = ""
    """Product name, or the hardware type."""
    memory_bytes: int = 0
    """0: not known."""
    power_cap_w: float = 0.0
    """Power limit in watts. 0: not known."""


class Share(Message, frozen=True):
    """A share of a device that a worker owns. A whole device is one share. `resident`: keys of models in its pages."""

    share: int
    device: str
    pages_total: int
    resident: tuple[str, ...] = ()
    loading: tuple[tuple[str, int], ...] = ()
    """Keys of models that have pages but are not loaded yet, and the id of the LOAD action in progress."""
    hardware: str = ""
    """Hardware type of the device, by which plans name pools. Empty: the device's name."""
    percent: float = 100.0
    """Part of the device's compute resources that the share may use."""


class ModelReport(Message, frozen=True):
    """A model in a worker's repository. `profile` is None if it cannot be served, for this `reason`.

    With a profile, `reason` says why the content that is in the repository now is not served. The `spec` is then that
    of the content before, which is still in memory.
    """

    spec: ModelSpec
    profile: Profile | None
    reason: str = ""
    note: str = ""
    """A remark about a model that is served. Shown with the state READY."""
    loading: str = ""
    """What the worker does before it can serve the model, such as "measuring". Empty: nothing more. Until it has read
    the model, the `spec` has only the name and the version."""
    retired: bool = False
    """The repository or its version policy has the version no more. Loaded copies serve until they are unloaded."""


class Register(Message, frozen=True, tag=56):
    """First message of a worker to a controller incarnation; sent again when the models that it can serve change."""

    shares: tuple[Share, ...]
    models: tuple[ModelReport, ...]
    running: tuple[int, ...] = ()
    """Ids of accepted actions that are not finished, of any controller. Only for readers of recordings."""
    number: int = 0
    """Number of the message, counted by the worker from 1. Controllers ignore one after a larger number."""
    scans: tuple[int, ...] | None = None
    """Ids of the receiver's Scans that are answered by this message. None: the sender does not name them; all."""
    device_info: DeviceInfo = DeviceInfo()
    """The device of the shares."""


class Scan(Message, frozen=True, tag=57):
    """Read the model from the repository again. The answer is a Register that names the `id`.

    It is sent when no share of the worker can run an earlier content of the model any more.
    """

    model: str
    id: int = 0


class Drain(Message, frozen=True, tag=58):
    """The sender stops: send it no further work. The receiver replies with Drain behind the last work that it has sent.

    It goes from worker to controller, from selector to frontend, and from frontend to client. What arrives before the
    reply is still done. A controller that sends it first makes the worker stop its work.
    """


WorkerMessage: TypeAlias = Infer | Load | Unload | Result | Ping | Pong | Register | Scan | Drain
