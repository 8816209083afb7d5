"""The client's protocol with a frontend, without sockets, clock or threads.

Both clients use a `Session`: they pass it what arrives (`receive`), send what `packets` returns, and call `expire` at
`next_ns`. Every request ends through its sink, exactly once, in `PendingRequests.finish`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from horologe.core.encoding import Encoder
from horologe.core.item_buffer import ItemBuffer
from horologe.core.outbox import Outbox, message_packet
from horologe.core.pending_requests import (
    GRACE_MS,
    Call,
    PendingRequests,
    PredictOptions,
    Sink,
    check_texts,
    parse_budget_ns,
    parse_limits,
    parse_outputs,
)
from horologe.core.reply import ANSWERED_BY, AdminAnswer, Reply, admin_result, decode_answer
from horologe.core.retry_budget import RETRY_SHARE, RetryBudget
from horologe_common import wire
from horologe_common.clock import NEVER_NS, ms, s
from horologe_common.status import Cancelled, HorologeError, Lost, ProtocolMismatch, Status, Unauthenticated, error_for
from horologe_common.wire.frames import unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe.core.encoding import Signatures
    from horologe.core.outbox import Packet
    from horologe_common.core.protocol import Buffer


HELLO_NS = s(1)
"""Interval at which Hello is repeated until there is an answer."""


class Handshake:
    """State of the handshake. `is_ready`: Welcome has arrived. `refusal`: error of all requests on this connection."""

    def __init__(self) -> None:
        self.is_ready = False
        self.refusal: HorologeError | None = None
        self.hello_ns = NEVER_NS
        """Time of the next Hello."""

    def on_connected(self, now_ns: int) -> None:
        """Start the handshake on a new connection."""
        self.is_ready, self.refusal, self.hello_ns = False, None, now_ns

    def on_disconnected(self) -> None:
        self.is_ready, self.hello_ns = False, NEVER_NS

    def refuse(self, error: HorologeError) -> None:
        """End the handshake with an error."""
        self.is_ready, self.refusal, self.hello_ns = False, error, NEVER_NS

    def pop_hello(self, now_ns: int) -> list[Packet]:
        """Return a Hello if it is time to send one."""
        if now_ns < self.hello_ns:
            return []
        self.hello_ns = now_ns + HELLO_NS
        return [message_packet(wire.Hello(wire.PROTOCOL, ()))]

    def accept_welcome(self) -> bool:
        """Complete the handshake. Return False if no Hello is pending."""
        if self.is_ready or self.hello_ns == NEVER_NS:
            return False
        self.is_ready, self.hello_ns = True, NEVER_NS
        return True


class Session:
    """Requests and their answers on a connection. All times are monotonic nanoseconds."""

    def __init__(
        self,
        signatures: Signatures,
        grace_ns: int = ms(GRACE_MS),
        max_open: int = 10_000,
        max_bytes: int = 512 << 20,
        retry_budget: float = RETRY_SHARE,
    ) -> None:
        self._retries = RetryBudget(retry_budget)
        self.pending = PendingRequests(grace_ns, max_open, max_bytes)
        self.handshake = Handshake()
        self.is_moving = False
        """The frontend drains: connect to another one, and call `leave`."""
        self.ignored = 0
        """Invalid messages, and answers to no pending request."""
        self._ids = itertools.count(1)
        self._outbox = Outbox(self.pending)
        self._encoder = Encoder(signatures, self.pending, self._outbox, self._ids)
        self._closed = False

    def predict(self, now_ns: int, sink: Sink, model: str, inputs: Any, options: PredictOptions) -> int:
        """Start a request whose result is a `Reply`, and return its id. All errors go to its sink.

        With an empty `model` the request is for the application of the options.
        """
        return self._predict(now_ns, sink, model, inputs, options)

    def _predict(
        self, now_ns: int, sink: Sink, model: str, inputs: Any, options: PredictOptions, *, is_stream: bool = False
    ) -> int:
        self._encoder.now_ns = now_ns
        call = Call(next(self._ids), sink, now_ns)
        call.model, call.options = model, options
        call.single = not isinstance(inputs, Mapping)
        self._retries.add_request()
        try:
            self._check_open()
            call.budget_ns = parse_budget_ns(options.slo_ms, options.timeout)
            call.outputs = parse_outputs(options.outputs)
            if is_stream:
                call.stream = parse_limits(options)
            names = options.version, options.application, options.context, options.traceparent
            check_texts(model, *names, *call.outputs)
            self._encoder.open_request(call, inputs)
        except HorologeError as error:
            self.pending.finish(call, error)
        return call.id

    def stream(self, now_ns: int, sink: ItemBuffer, model: str, inputs: Any, options: PredictOptions) -> int:
        """Start a request whose outputs come as items, and return its id. All errors go to its sink."""
        return self._predict(now_ns, sink, model, inputs, options, is_stream=True)

    def take_items(self, now_ns: int, request_id: int, items: int) -> None:
        """Report how many items of a stream were taken so far."""
        if call := self.pending.get(request_id):
            self.pending.renew_stream(now_ns, call)
            self._outbox.take_items(call, items)

    def query(
        self,
        now_ns: int,
        sink: Sink,
        question: Callable[[int], wire.AnyMessage],
        timeout: float,
        buffers: Sequence[Buffer] = (),
    ) -> int:
        """Start any other request, and return its id. `question` makes the message from the id."""
        self._encoder.now_ns = now_ns
        call = Call(next(self._ids), sink, now_ns)
        try:
            self._check_open()
            call.budget_ns = parse_budget_ns(None, timeout)
            call.question = question(call.id)
            self.pending.add(call)
            call.buffers = buffers
            self.pending.add_bytes(call, sum(map(len, buffers)))
            self._outbox.add(call)
        except HorologeError as error:
            self.pending.finish(call, error)
        return call.id

    def cancel(self, request_id: int) -> None:
        """Drop a request, and cancel it at the server if it was sent. Its sink is not called."""
        if call := self.pending.get(request_id):
            self.pending.remove(call)
            self._outbox.cancel(call)

    def close(self) -> None:
        """End all pending requests with `Cancelled`, and all later ones."""
        self._closed = True
        for call in self.pending:
            self.pending.finish(call, Cancelled("the client was closed"))

    def _check_open(self) -> None:
        if self._closed:
            raise Cancelled("the client is closed")
        if (refusal := self.handshake.refusal) is not None:
            raise type(refusal)(refusal.reason)
        self.pending.check_room()

    def on_connected(self, now_ns: int) -> int:
        """Start the handshake. Return the number of the connection."""
        self._outbox.clear_cancels()
        self._outbox.connection += 1
        self.handshake.on_connected(now_ns)
        return self._outbox.connection

    @property
    def connection(self) -> int:
        """Return the number of the current connection, 0 before the first."""
        return self._outbox.connection

    def leave(self) -> Packet:
        """Return the last packet for a frontend that drains. Its answers still arrive."""
        self.is_moving = False
        return message_packet(wire.Drain())

    def on_disconnected(self, now_ns: int, connection: int) -> None:
        """End the requests that were sent over this connection with `Lost`, or retry them.

        The others wait for the next Welcome.
        """
        self._encoder.now_ns = now_ns
        if connection == self._outbox.connection:
            self.handshake.on_disconnected()
            self._outbox.clear_cancels()
        for call in self.pending:
            if call.sent and call.sent == connection and not self._retry(call, now_ns):
                self.pending.finish(call, Lost("the frontend has disconnected"))

    def _retry(self, call: Call, now_ns: int) -> bool:
        """Send a lost request again if it may run twice, has time left and is in the budget. Return whether it is sent.

        A request whose deadline is the SLO of the model gets what remains of it. A stream is never sent again.
        """
        if not call.options.idempotent or call.retried or isinstance(call.sink, ItemBuffer):
            return False
        if not call.budget_ns:
            signature = self._encoder.signatures.get(call.subject)
            if signature is None:
                return False
            call.budget_ns = signature.slo_ns
        if (call.budget_ns and now_ns >= call.begun_ns + call.budget_ns) or not self._retries.take_retry():
            return False
        call.sent, call.retried = 0, True
        self._outbox.add(call)
        return True

    def refuse(self, error: HorologeError) -> None:
        """End all requests with this error, and new ones until the next connection."""
        self.handshake.refuse(error)
        for call in self.pending:
            self.pending.finish(call, type(error)(error.reason))

    def has_packets(self, now_ns: int) -> bool:
        """Return whether `packets` would return any."""
        handshake = self.handshake
        return now_ns >= handshake.hello_ns or (handshake.is_ready and bool(self._outbox))

    def packets(self, now_ns: int) -> list[Packet]:
        """Return the packets to send now, each a list of frames."""
        packets = self.handshake.pop_hello(now_ns)
        return packets + self._outbox.packets(now_ns) if self.handshake.is_ready else packets

    def next_ns(self) -> int | None:
        """Return when to call `expire` next; None: not before the next request."""
        at_ns = min(self.pending.next_ns() or NEVER_NS, self.handshake.hello_ns)
        return None if at_ns == NEVER_NS else at_ns

    def expire(self, now_ns: int) -> None:
        """End requests with `Lost` whose deadline and grace have passed."""
        self._encoder.now_ns = now_ns
        self.pending.expire(now_ns)

    def receive(self, now_ns: int, frames: Sequence[Any]) -> None:
        """Handle a packet. Count and ignore invalid packets and answers to no pending request."""
        self._encoder.now_ns = now_ns
        try:
            arrivals = unpack(frames, wire.PEER_HEADER_LIMIT)
        except HorologeError:
            self.ignored += 1
            return
        for _, _, message, buffers in arrivals:
            if isinstance(message, wire.Answer):
                self._on_answer(now_ns, message, buffers)
            elif isinstance(message, AdminAnswer):
                self._on_admin_answer(message)
            elif isinstance(message, wire.Drain):
                self._on_drain()
            elif isinstance(message, wire.Welcome):
                self._on_welcome(message)
            elif isinstance(message, wire.Rejected):
                self._on_rejected(error_for(message.status, message.reason))
            else:
                self.ignored += 1

    def _on_answer(self, now_ns: int, answer: wire.Answer, buffers: Sequence[Buffer]) -> None:
        call = self.pending.get(answer.id)
        if call is None or call.question is not None or not call.sent:
            self.ignored += 1
            return
        if answer.status in (Status.UNKNOWN_MODEL, Status.INVALID_INPUT):
            self._encoder.remove_signature(call)
        if answer.status == Status.LOST and self._retry(call, now_ns):
            return
        result = decode_answer(answer, buffers, call.single)
        if answer.more and isinstance(result, Reply) and isinstance(call.sink, ItemBuffer):
            call.sink.add_item(result)
            self.pending.renew_stream(now_ns, call)
        else:
            self.pending.finish(call, result)

    def _on_admin_answer(self, message: AdminAnswer) -> None:
        call = self.pending.get(message.id)
        if call is None or type(call.question) not in ANSWERED_BY[type(message)]:
            self.ignored += 1
            return
        if isinstance(call.question, wire.Admit):
            self._encoder.remove_model(call.question.model)
        if isinstance(message, wire.Models):
            self._encoder.incomplete = message.incomplete
        self.pending.finish(call, admin_result(message))

    def _on_drain(self) -> None:
        self.is_moving = True
        self.handshake.on_disconnected()

    def _on_welcome(self, welcome: wire.Welcome) -> None:
        if welcome.protocol != wire.PROTOCOL:
            self.refuse(ProtocolMismatch(f"protocol: got version {welcome.protocol}, wanted {wire.PROTOCOL}"))
        elif self.handshake.accept_welcome():
            self._encoder.signatures.clear()
            self._encoder.park_encoded()

    def _on_rejected(self, error: HorologeError) -> None:
        """Handle the rejection of the handshake, or of a packet: if a single request was sent, end it."""
        if not self.handshake.is_ready or isinstance(error, ProtocolMismatch | Unauthenticated):
            self.refuse(error)
            return
        sent = [call for call in self.pending if call.sent]
        if len(sent) == 1:
            self.pending.finish(sent[0], error)
