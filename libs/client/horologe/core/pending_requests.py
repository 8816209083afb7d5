"""The pending requests of a client: their options, number, size and timers, and their end."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Real
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

import msgspec

from horologe_common.clock import ms, s
from horologe_common.core.indexed_heap import IndexedHeap
from horologe_common.status import HorologeError, InvalidInput, Lost, Refused
from horologe_common.wire import STREAM_IDLE_NS, AnyMessage, Predict, StreamLimits, Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from horologe_common.core.protocol import Buffer

BEST_EFFORT_NS = s(30)
"""The server answers requests without a deadline within this time (decisions.md)."""
GRACE_MS = 250
"""By default the frontend answers LATE 50 ms after the deadline. The rest is for its stalls and for the way back."""
MANY = 1000
"""Requests that `predict_many` keeps in flight. They fill the largest batches of several devices."""
LONGEST_MS = 24 * 3600 * 1e3


class AskOptions(TypedDict, total=False):
    """Options of a request to an application, in both clients."""

    slo_ms: float | None
    """Deadline in milliseconds."""
    timeout: float | None
    """Deadline in seconds. The earlier of the two applies."""
    outputs: Sequence[str]
    """Names of the outputs to return, in this order. Default: all."""
    context: str
    """Context of a request to an application: the user or session for which it learns separately."""
    content_hash: bool
    """Name the content of the model that answered in `Reply.content_hashes`."""
    traceparent: str
    """Trace of the caller, as in the header of W3C Trace Context."""
    idempotent: bool
    """The request may run twice: if it is lost, it is sent once more, as far as the client's `retry_budget` allows."""


class Options(AskOptions, total=False):
    """Options of a prediction, in both clients."""

    version: str
    """Version of the model. Default: the current one, and a part of the requests to its canary."""
    application: str
    """Name of the caller's application: execution times are measured per model and application."""


class StreamOptions(Options, total=False):
    """Options of a stream, in both clients. `slo_ms` and `timeout` are the deadline of the whole stream."""

    first_item_ms: float | None
    """Time until the first item, in milliseconds. Default: as the model declares."""
    gap_ms: float | None
    """Time between two items, in milliseconds. Default: as the model declares."""


class PredictOptions(msgspec.Struct, frozen=True):
    """The values of `Options`, with their defaults. Raises `TypeError` for an unknown name."""

    version: str = ""
    slo_ms: float | None = None
    timeout: float | None = None
    outputs: Sequence[str] = ()
    application: str = ""
    context: str = ""
    content_hash: bool = False
    traceparent: str = ""
    first_item_ms: float | None = None
    gap_ms: float | None = None
    idempotent: bool = False


NO_OPTIONS = PredictOptions()


class Sink(Protocol):
    """Receiver of a request's result: an `asyncio.Future` or a `Handle`."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


class Call(msgspec.Struct, eq=False):
    """A pending request: a Predict, or another message (`question`)."""

    id: int
    sink: Sink
    begun_ns: int
    budget_ns: int = 0
    """Time allowed from `begun_ns` on. 0: the SLO of the model, or best effort."""
    question: AnyMessage | None = None
    model: str = ""
    options: PredictOptions = NO_OPTIONS
    outputs: tuple[str, ...] = ()
    single: bool = True
    """The input was one array, so a single output is returned as an array."""
    inputs: tuple[Tensor, ...] = ()
    buffers: Sequence[Buffer] = ()
    stream: StreamLimits | None = None
    """The outputs come as items. Its sink is an `ItemBuffer`."""
    size: int = 0
    """Bytes of the inputs."""
    sent: int = 0
    """Number of the connection on which it was sent. 0: not sent yet."""
    has_deadline: bool = False
    """It has a deadline: its own, or the SLO of its model."""
    refusal: str = ""
    """Why the server could not give the signature yet."""
    retried: bool = False
    """It was lost, and is sent for the second time."""

    @property
    def subject(self) -> tuple[str, str, str]:
        """Return the key of the signature: (model, version, "") or ("", "", application)."""
        return (self.model, self.options.version, "") if self.model else ("", "", self.options.application)

    def message(self, now_ns: int) -> AnyMessage:
        """Return the message to send, with the remaining budget."""
        if self.question is not None:
            return self.question
        options = self.options
        budget_ns = max(1, self.begun_ns + self.budget_ns - now_ns) if self.budget_ns else 0
        return Predict(
            self.id,
            self.model,
            options.version,
            budget_ns,
            self.inputs,
            self.outputs,
            options.application,
            options.context,
            options.content_hash,
            now_ns,
            traceparent=options.traceparent,
            stream=self.stream,
        )


class PendingRequests:
    """Requests by id, bounded in number and in bytes of inputs.

    Invariant: `held_bytes` is the size of all requests and at most `max_bytes`. Each request has one timer.
    """

    def __init__(self, grace_ns: int, max_open: int, max_bytes: int) -> None:
        self.grace_ns = grace_ns
        self.max_open = max_open
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self._calls: dict[int, Call] = {}
        self._deadlines: IndexedHeap[Any, int] = IndexedHeap()
        self.get = self._calls.get
        self.next_ns = self._deadlines.smallest_priority

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, call: Call) -> bool:
        return call.id in self._calls

    def __iter__(self) -> Iterator[Call]:
        return iter(list(self._calls.values()))

    def check_room(self) -> None:
        """Raise `Refused` if there is no room for another request."""
        if len(self._calls) >= self.max_open:
            raise Refused(f"client queue full: {self.max_open} requests are open")

    def add(self, call: Call, slo_ns: int = 0) -> None:
        """Add the request, or set its timer again when the SLO of its model has arrived."""
        self._calls[call.id] = call
        budget_ns = call.budget_ns or slo_ns
        if call.stream is not None and not budget_ns:
            self.renew_stream(call.begun_ns, call)
            return
        self._deadlines.push(call.id, call.begun_ns + (budget_ns or BEST_EFFORT_NS) + self.grace_ns)
        call.has_deadline = bool(budget_ns)

    def renew_stream(self, now_ns: int, call: Call) -> None:
        """Set the timer of a stream again, which has moved. One with a deadline as a whole keeps it."""
        if call.stream is not None and not call.has_deadline:
            longest_ns = max(call.stream.first_ns, call.stream.gap_ns, BEST_EFFORT_NS, STREAM_IDLE_NS)
            self._deadlines.push(call.id, now_ns + longest_ns + self.grace_ns)

    def add_bytes(self, call: Call, size: int) -> None:
        """Add the bytes of a request's inputs. Raises `Refused` if there are too many."""
        if self.held_bytes + size > self.max_bytes:
            raise Refused(f"client queue full: {self.held_bytes} bytes are open, {size} more wanted")
        call.size = size
        self.held_bytes += size

    def remove(self, call: Call) -> None:
        """Remove the request without calling its sink."""
        if self._calls.pop(call.id, None) is not None:
            self._deadlines.remove(call.id)
            self.held_bytes -= call.size

    def finish(self, call: Call, result: Any) -> None:
        """Remove a request and pass its result or error to its sink. It need not have been added."""
        self.remove(call)
        if call.sink.done():
            return
        if isinstance(result, HorologeError):
            call.sink.set_exception(result)
        else:
            call.sink.set_result(result)

    def expire(self, now_ns: int) -> None:
        """End requests whose deadline and grace have passed: with `Refused` without a signature, else with `Lost`."""
        for call_id in self._deadlines.pop_up_to(now_ns):
            call = self._calls[call_id]
            if call.refusal and not call.sent:
                self.finish(call, Refused(call.refusal))
                continue
            why = "no answer came" if call.sent else "the frontend could not be reached"
            self.finish(call, Lost(f"{why} within {(now_ns - call.begun_ns) / 1e6:.0f} ms"))

    def check(self) -> None:
        assert self.held_bytes == sum(call.size for call in self._calls.values()) <= self.max_bytes
        assert len(self._deadlines) == len(self._calls)
        self._deadlines.check()


def parse_budget_ns(slo_ms: float | None, timeout: float | None, name: str = "slo_ms") -> int:
    """Return the smaller of `slo_ms` and `timeout` (s) in nanoseconds, 0 without either. Raises `InvalidInput`.

    `name`: the option that `slo_ms` is.
    """
    if timeout is None and type(slo_ms) in (int, float) and 0 < slo_ms <= LONGEST_MS:  # type: ignore[operator]
        return int(slo_ms * 1_000_000) or 1  # type: ignore[operator]  # the usual case: a fifth of the time
    granted = LONGEST_MS + 1
    for field, value, factor in ((name, slo_ms, 1.0), ("timeout", timeout, 1e3)):
        if value is None:
            continue
        millis = _number_of(value) * factor
        if not 0 < millis <= LONGEST_MS:
            raise InvalidInput(f"{field}: got {value!r}, wanted a number over 0 and of at most a day")
        granted = min(granted, millis)
    return max(1, ms(granted)) if granted <= LONGEST_MS else 0


def _number_of(value: Any) -> float:
    """Return a number of any library as a float, or NaN for anything else. True and texts are no numbers."""
    try:
        return float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return math.inf


def parse_outputs(outputs: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the requested outputs. Raises `InvalidInput` for what is no list."""
    if isinstance(outputs, str) or not isinstance(outputs, Iterable):
        raise InvalidInput(f"outputs: got {outputs!r}, wanted a list of names")
    return tuple(outputs)


def parse_limits(options: PredictOptions) -> StreamLimits:
    """Return the deadlines of the items of a stream. Raises `InvalidInput`."""
    first_ns = parse_budget_ns(options.first_item_ms, None, "first_item_ms")
    return StreamLimits(first_ns, parse_budget_ns(options.gap_ms, None, "gap_ms"))


def check_texts(*texts: object) -> None:
    """Raise `InvalidInput` for a name that is not a string."""
    for text in texts:
        if type(text) is not str:
            raise InvalidInput(
                f"model, version, application, context, traceparent, outputs: got {text!r}, wanted strings"
            )
