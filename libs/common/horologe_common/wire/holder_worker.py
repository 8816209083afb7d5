"""Controller - holder - worker - selector."""

from __future__ import annotations

from horologe_common.status import Status
from horologe_common.wire.message import Message, Tensor


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
