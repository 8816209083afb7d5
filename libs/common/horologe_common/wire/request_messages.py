"""Frontend - selector - controller: requests without their tensors."""

from __future__ import annotations

from typing import TypeAlias

from horologe_common.wire.client_frontend import StreamLimits
from horologe_common.wire.message import Message


class Query(Message, frozen=True, tag=20):
    """A validated request, from a frontend to a selector. The frontend holds its inputs under `id`.

    A Query with an empty `model` is for the `application`. It always has an `input_hash`, which feedback refers to;
    other queries have one only if caching is on.

    Requests of a model with variable dimensions or optional inputs share a batch only if their `shape_key` is equal. It
    is 0 if the model pads its inputs and gets all of them. `length` is the size of the input in the variable
    dimensions, 0 if all are fixed.
    """

    id: int
    model: str
    budget_ns: int
    rows: int
    input_hash: bytes = b""
    best_effort: bool = False
    shape_key: int = 0
    length: int = 0
    application: str = ""
    context: str = ""
    content_hash: bool = False
    """True if the answer must name the contents of the models."""
    traceparent: str = ""
    """Trace and span of the request, if it is traced."""
    client: str = ""
    """Client that shares devices fairly with others: the name of its key, its connection, or its HTTP address."""
    stream: StreamLimits | None = None
    """As in Predict. The deadlines of items are set, or 0 if there are none."""


class Release(Message, frozen=True, tag=21):
    """The inputs held under these ids can be freed. From a selector to a frontend."""

    ids: tuple[int, ...]


class StreamStep(Message, frozen=True):
    """A step of a stream, which makes one item. Step 1 begins the stream and has its inputs; later ones have none."""

    stream: int
    """Number of the stream: the id of the Submit of its first step."""
    number: int
    """Number of the step, from 1. A worker runs each step once."""
    worker: str = ""
    """Worker that keeps the state of the stream, and must run the step. Empty for step 1."""
    share: int = 0
    """Share of the worker."""


class Submit(Message, frozen=True, tag=30):
    """A request for one model (a key `name/version`), from a frontend, selector or profiler to the controller.

    Its inputs are held at `holder` under `input_id`. With `solo` it never shares a batch, so that its execution time
    can be measured. A best-effort request that is also `solo` goes before all others once it has waited for
    `urgent_after_ns`; 0: never.
    """

    id: int
    model: str
    budget_ns: int
    rows: int
    holder: str
    input_id: int
    best_effort: bool = False
    shape_key: int = 0
    length: int = 0
    application: str = ""
    solo: bool = False
    traceparent: str = ""
    """As in Query."""
    urgent_after_ns: int = 0
    client: str = ""
    """As in Query."""
    step: StreamStep | None = None
    """None: the request is no step of a stream."""


class Outcome(Message, frozen=True, tag=31):
    """The end of a Submit without outputs: refused, late, lost or failed."""

    id: int
    status: int
    reason: str = ""
    retry_after_ns: int = 0
    refuses_ns: int = 0
    """If there is a `place_ns`: for how long from now on the controller refuses all requests like this one, unless
    devices are faster than predicted."""
    place_ns: int = 0
    """Time after which it can accept one more such request, again and again. 0: not known."""


class RefusedAgain(Message, frozen=True, tag=34):
    """Requests that a frontend has refused without asking, because of `Outcome.place_ns`. To the controller."""

    counts: tuple[tuple[str, int], ...]
    """(model, a key `name/version`; requests)."""


class Settle(Message, frozen=True, tag=32):
    """Report when no answer from an earlier content of these models (keys) can follow. From the controller.

    A selector answers Settled at once: announcements reach it before. A frontend answers when its open requests that
    earlier content may have answered have ended, and all of its open requests of the models in `drained`.
    """

    id: int
    models: tuple[str, ...]
    drained: tuple[str, ...] = ()
    """Versions (keys) that requests without a version do not reach any more."""


class Settled(Message, frozen=True, tag=33):
    """Answer to Settle."""

    id: int


RequestMessage: TypeAlias = Query | Release | Submit | Outcome | RefusedAgain | Settle | Settled
