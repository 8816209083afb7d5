"""The client's side of a conversation with a frontend, without sockets, clock or threads.

Both clients drive one `Session`: what arrives goes to `receive`, what `packets` returns is sent, `expire` is called
when `next_ns` has come. A request ends through its sink, exactly once, in `Book.end`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from horologe.core.call import Call, Sink, budget, check_texts
from horologe.core.client_handshake import Handshake
from horologe.core.encoding import Encoder
from horologe.core.outbox import Outbox
from horologe.core.pending_requests import Book
from horologe.core.reply import reply_of
from horologe.core.responses import Told, answers, result_of
from horologe.core.signature_cache import Catalogue
from horologe_common import wire
from horologe_common.clock import NEVER_NS, ms
from horologe_common.status import (
    Cancelled,
    HorologeError,
    Lost,
    ProtocolMismatch,
    Status,
    Unauthenticated,
    error_for,
)
from horologe_common.wire.frames import unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe.core.outbox import Packet
    from horologe.core.signature_cache import Signatures
    from horologe_common.core.protocol import Buffer


class Session:
    """The handshake, requests with their answers, and known signatures. All times are monotonic nanoseconds."""

    def __init__(
        self,
        signatures: Signatures,
        grace_ns: int = ms(50),
        max_open: int = 10_000,
        max_bytes: int = 512 << 20,
    ) -> None:
        self.book = Book(grace_ns, max_open, max_bytes)
        self.handshake = Handshake()
        self.ignored = 0
        """Messages that were garbage, or that answered nothing open."""
        self._catalogue = Catalogue(signatures)
        self._ids = itertools.count(1)
        self._outbox = Outbox(self.book)
        self._encoder = Encoder(self._catalogue, self.book, self._outbox, self._ids)
        self._closed = False

    # requests

    def predict(
        self,
        now_ns: int,
        sink: Sink,
        model: str,
        inputs: Any,
        version: str = "",
        slo_ms: float | None = None,
        timeout: float | None = None,
        outputs: Sequence[str] = (),
        application: str = "",
        context: str = "",
    ) -> int:
        """Open a request for a `Reply`; its id. What is wrong with it ends it like everything else: by its sink.

        Without a `model` the `application` is asked.
        """
        self._encoder.now_ns = now_ns
        call = Call(next(self._ids), sink, now_ns)
        call.model, call.version, call.outputs, call.application = model, version, tuple(outputs), application
        call.context = context
        call.single = not isinstance(inputs, Mapping)
        try:
            self._admit()
            call.budget_ns = budget(slo_ms, timeout)
            check_texts(model, version, application, context, *outputs)
            self._encoder.take(call, inputs)
        except HorologeError as error:
            self.book.end(call, error)
        return call.id

    def ask(
        self,
        now_ns: int,
        sink: Sink,
        question: Callable[[int], wire.AnyMessage],
        timeout: float,
        buffers: Sequence[Buffer] = (),
    ) -> int:
        """Open a request for whatever answers such a question; its id. `question` makes the message, given the id."""
        self._encoder.now_ns = now_ns
        call = Call(next(self._ids), sink, now_ns)
        try:
            self._admit()
            call.budget_ns = budget(None, timeout)
            call.question = question(call.id)
            self.book.open(call)
            call.buffers = buffers
            self.book.grow(call, sum(map(len, buffers)))
            self._outbox.add(call)
        except HorologeError as error:
            self.book.end(call, error)
        return call.id

    def cancel(self, request_id: int) -> None:
        """Forget a request, and say so to the server if it knows of it. The sink is left alone."""
        if call := self.book.get(request_id):
            self.book.forget(call)
            self._outbox.cancel(call)

    def close(self) -> None:
        """End everything open with `Cancelled`, and whatever is asked for later."""
        self._closed = True
        for call in self.book:
            self.book.end(call, Cancelled("the client was closed"))

    def _admit(self) -> None:
        if self._closed:
            raise Cancelled("the client is closed")
        if (refusal := self.handshake.refusal) is not None:
            raise type(refusal)(refusal.reason)
        self.book.admit()

    # the connection

    def connected(self, now_ns: int) -> None:
        """A connection stands: say Hello."""
        self.handshake.connected(now_ns)

    def disconnected(self, now_ns: int) -> None:
        """What was sent cannot be answered any more; what was not waits for the next welcome."""
        self._encoder.now_ns = now_ns
        self.handshake.disconnected()
        self._outbox.clear_cancels()
        for call in self.book:
            if call.sent:
                self.book.end(call, Lost("the frontend went away"))

    def refuse(self, error: HorologeError) -> None:
        """There will be no welcome: end everything with this error, and what comes before the next connection."""
        self.handshake.refuse(error)
        for call in self.book:
            self.book.end(call, type(error)(error.reason))

    def mail(self, now_ns: int) -> bool:
        """Whether `packets` would return any."""
        handshake = self.handshake
        return now_ns >= handshake.due_ns or (handshake.ready and bool(self._outbox))

    def packets(self, now_ns: int) -> list[Packet]:
        """What to send now, each a list of frames."""
        packets = self.handshake.hello(now_ns)
        return packets + self._outbox.packets(now_ns) if self.handshake.ready else packets

    def next_ns(self) -> int | None:
        """When to call `expire` next; None: not before the next request."""
        at_ns = min(self.book.next_ns() or NEVER_NS, self.handshake.due_ns)
        return None if at_ns == NEVER_NS else at_ns

    def expire(self, now_ns: int) -> None:
        """End the requests whose deadline and grace have passed with `Lost`."""
        self._encoder.now_ns = now_ns
        self.book.expire(now_ns)

    def receive(self, now_ns: int, frames: Sequence[Any]) -> None:
        """Take a packet. Garbage and answers to nothing open are counted and ignored."""
        self._encoder.now_ns = now_ns
        try:
            arrivals = unpack(frames, wire.PEER_HEADER_LIMIT)
        except HorologeError:
            self.ignored += 1
            return
        for _, _, message, buffers in arrivals:
            if isinstance(message, wire.Answer):
                self._answered(message, buffers)
            elif isinstance(message, Told):
                self._told(message)
            elif isinstance(message, wire.Welcome):
                self._welcomed(message)
            elif isinstance(message, wire.Rejected):
                self._rejected(error_for(message.status, message.reason))
            else:
                self.ignored += 1

    def _answered(self, answer: wire.Answer, buffers: Sequence[Buffer]) -> None:
        call = self.book.get(answer.id)
        if call is None or call.question is not None or not call.sent:
            self.ignored += 1
            return
        if answer.status in (Status.UNKNOWN_MODEL, Status.INVALID_INPUT):
            self._catalogue.forget(call)
        self.book.end(call, reply_of(answer, buffers, call.single))

    def _told(self, message: Told) -> None:
        call = self.book.get(message.id)
        if call is None or not answers(message, call.question):
            self.ignored += 1
        else:
            self.book.end(call, result_of(message))

    def _welcomed(self, welcome: wire.Welcome) -> None:
        if welcome.protocol != wire.PROTOCOL:
            self.refuse(ProtocolMismatch(f"protocol: got version {welcome.protocol}, wanted {wire.PROTOCOL}"))
        elif self.handshake.welcomed():
            self._catalogue.known.clear()

    def _rejected(self, error: HorologeError) -> None:
        """Of the handshake; or of a packet, which does not say whose: only a request that is alone is ended."""
        if not self.handshake.ready or isinstance(error, ProtocolMismatch | Unauthenticated):
            self.refuse(error)
            return
        sent = [call for call in self.book if call.sent]
        if len(sent) == 1:
            self.book.end(sent[0], error)
