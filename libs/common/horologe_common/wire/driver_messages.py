"""Selector - driver: the queries of a pipeline, and the calls of its driver to models.

A driver is a child process of its selector, connected by a socket pair. Ping and Pong show that it does not hang.
"""

from __future__ import annotations

from typing import TypeAlias

from horologe_common.status import Status
from horologe_common.wire.message import MAX_FRAME_BYTES, Message, Tensor


class StartDriver(Message, frozen=True, tag=70):
    """First message to the process: load the driver function from `file`. The answer is DriverReady."""

    pipeline: str
    file: str
    calls: int
    """Maximum number of calls per run."""
    step_ns: int
    """A run that uses the processor for longer between two calls, or blocks for longer, fails. 0: no limit."""
    memory_bytes: int = 0
    """Maximum data segment of the process. 0: no limit."""
    max_frame_bytes: int = MAX_FRAME_BYTES
    """Maximum size of the tensors of a call or a result."""


class DriverReady(Message, frozen=True, tag=71):
    """The driver function is loaded, or cannot be, for this reason."""

    reason: str = ""


class StartRun(Message, frozen=True, tag=72):
    """Run the driver function for one query, whose tensors are `inputs`."""

    run: int
    budget_ns: int
    inputs: tuple[Tensor, ...]


class ModelCall(Message, frozen=True, tag=73):
    """A call of a run to a model. The answer is CallDone, unless the run ends before."""

    run: int
    call: int
    """Number of the call within its run, from 1."""
    model: str
    place: int
    """Line of the driver that calls."""
    parents: tuple[int, ...]
    """Earlier calls of the run whose results it may depend on. Their own parents are left out."""
    inputs: tuple[Tensor, ...]
    stream: bool = False
    """Read the stream of the model: each item is a CallDone with `more`."""


class CallDone(Message, frozen=True, tag=74):
    """The end of a call. `outputs` is empty unless the status is OK."""

    run: int
    call: int
    status: int = Status.OK
    reason: str = ""
    outputs: tuple[Tensor, ...] = ()
    more: bool = False
    """An item of a stream: the end of the call follows."""


class CallTaken(Message, frozen=True, tag=83):
    """The driver has taken `items` of the stream that is this call. Negative: it reads no further ones."""

    run: int
    call: int
    items: int


class EndRun(Message, frozen=True, tag=75):
    """Cancel a run, which then needs no RunDone."""

    run: int


class RunDone(Message, frozen=True, tag=76):
    """The driver function has returned `outputs`, or it failed."""

    run: int
    status: int = Status.OK
    reason: str = ""
    outputs: tuple[Tensor, ...] = ()


class RunItem(Message, frozen=True, tag=82):
    """The driver function has yielded an item. The driver gets an ItemsTaken with the id of the run for them."""

    run: int
    outputs: tuple[Tensor, ...]


DriverMessage: TypeAlias = (
    StartDriver | DriverReady | StartRun | ModelCall | CallDone | CallTaken | EndRun | RunDone | RunItem
)
