"""The host of the cores of one process: it decides who is called when, and what leaves the process.

One class with two drivers. The reactor (transport/reactor.py) gives it sockets and the real clock; a simulated process
(apps/sim, engine/simulated_process.py) a network and a clock in virtual time. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from horologe_common.clock import NEVER_NS, ms
from horologe_common.core.protocol import PeerConnected
from horologe_common.wire import Envelope
from horologe_common.wire.frames import tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from horologe_common.core.protocol import Arrival, Buffer, Core, Drains, Out

    Deliver = Callable[[Any, Sequence[Buffer]], None]
    OnFault = Callable[[Core | None, Any, Exception], None]

FAULT_PAUSE_NS = ms(10)
"""Pause until the next tick of a core whose tick has raised, unless a message arrives before. A core whose timer stays
expired would otherwise be ticked all the time."""
CALLS_PER_TURN = 64
"""Cores called in a turn at most. Remaining messages wait for the next turn, so that sockets are read in between."""

MESSAGES_PER_PASS = 32
"""Messages that the cores handle before packets are sent. With 64 requests in flight and passes of all of them, client,
edge and worker wait for each other: 21,000 requests/s. 32: 22,000 to 29,000/s; 16: 25,000/s; 8: 16,000/s (two cores,
ipc, without profiler, the quietest of three rounds)."""


class Transport(Protocol):
    """The connections of a process to its peers."""

    def route(self, address: str) -> Any:
        """Return the route to the core at `address`, a hashable value; None if it cannot be reached."""

    def send(self, route: Any, envelopes: list[Envelope], buffers: list[Buffer]) -> None:
        """Send one packet. `buffers` holds the bytes of all tensors, in the order in which the messages name them."""


class NoTransport:
    """The transport of a process without peers."""

    def route(self, address: str) -> None:
        """Return None."""

    def send(self, route: Any, envelopes: list[Envelope], buffers: list[Buffer]) -> None:
        """Do nothing: there is no route to send on."""


class CoreObserver(Protocol):
    """Sees all that the cores receive and send, such as the recorder. Subclasses may leave out calls and faults."""

    def observe_message(self, now_ns: int, core: Core, sender: str, message: Any, buffers: Sequence[Buffer]) -> None:
        """Called before the core handles the message."""

    def observe_tick(self, now_ns: int, core: Core, outs: Sequence[Out]) -> None:
        """Called after the core's tick with the messages that it sends."""

    def observe_call(self, now_ns: int, core: Core, method: str, arguments: tuple[int, ...]) -> None:
        """Called before another method of the core is called: `end_turn` or `drain`."""
        return

    def observe_fault(self, now_ns: int, core: Core) -> None:
        """Called when the core has raised."""
        return


@runtime_checkable
class TurnObserver(Protocol):
    """A core that observes how long the turns of its process take."""

    def end_turn(self, now_ns: int, took_ns: int) -> None:
        """Called at the end of each turn, with the time since the last one in which the process was busy."""


def raise_fault(core: Core | None, message: Any, error: Exception) -> None:
    """Raise the error. The `on_fault` of simulations, which must not hide a bug in a core."""
    raise error


class HostedCore:
    """A core, the messages it has not handled yet, and the time of its next tick."""

    __slots__ = ("core", "mailbox", "tick_due", "wakeup_ns")

    def __init__(self, core: Core) -> None:
        self.core = core
        self.mailbox: list[Arrival] = []
        self.wakeup_ns = 0
        self.tick_due = False


class CoreHost:
    """Runs cores, the first of `cores` first. `on_fault` gets the core (None: a packet), the message and the error.

    A message between two cores of the process is an append to a list. Messages to peers are collected, and sent in one
    packet per peer. `attached` has functions by address, for addresses of this process that are not cores.
    """

    def __init__(
        self, cores: Sequence[Core], clock: Callable[[], int], transport: Transport, on_fault: OnFault
    ) -> None:
        self.observer: CoreObserver | None = None
        self.faults = 0
        self.handled = 0
        """Messages that the cores have handled."""
        self.dropped = 0
        """Messages to addresses without a core or a route: stale incarnations, clients that have disconnected."""
        self.attached: dict[str, Deliver] = {}
        self._clock = clock
        self._route, self._send = transport.route, transport.send
        self._on_fault = on_fault
        self._hosted = {core.address: HostedCore(core) for core in cores}
        self._order = list(self._hosted.values())
        self._turn_observers = [core for core in cores if isinstance(core, TurnObserver)]
        self._outbox: dict[tuple[str, str], tuple[Any, list[Any], list[Buffer]]] = {}
        """(to, sender) -> route, messages, buffers."""
        self._deliveries: list[tuple[Deliver, Any, Sequence[Buffer]]] = []

    def __iter__(self) -> Iterator[Core]:
        return (hosted.core for hosted in self._order)

    def introduce_cores(self, machine: str) -> None:
        """Send every core a PeerConnected for each other core of the process. `machine` is the boot id of the host."""
        for to in self._hosted:
            self.enqueue([(to, other, PeerConnected(other, machine), ()) for other in self._hosted if other != to])

    def enqueue(self, arrivals: Sequence[Arrival]) -> None:
        """Put messages into the mailboxes of their cores. Drop and count those for unknown addresses."""
        for arrival in arrivals:
            if hosted := self._hosted.get(arrival[0]):
                hosted.mailbox.append(arrival)
            else:
                self.dropped += 1

    def has_messages(self) -> bool:
        """Return whether any mailbox holds a message."""
        return any(hosted.mailbox for hosted in self._order)

    def wake_all(self) -> None:
        """Tick every core in the next turn."""
        for hosted in self._order:
            hosted.wakeup_ns = 0

    def wakeup_ns(self) -> int:
        """Return the earliest time at which a core needs a tick; `NEVER_NS` if none does."""
        return min([hosted.wakeup_ns for hosted in self._order])

    def run_turn(self, arrivals: Sequence[Arrival] = ()) -> None:
        """Handle messages that have arrived, `MESSAGES_PER_PASS` at a time, and those that the mailboxes hold."""
        end = 0
        try:
            while end == 0 or end < len(arrivals):
                begin, end = end, end + MESSAGES_PER_PASS
                self.enqueue(arrivals[begin:end])
                self._run_pass()
        finally:
            self.enqueue(arrivals[end:])  # after an exception, the next turn handles them

    def _run_pass(self) -> None:
        """Call cores until none has messages or is due: always the first such core in the order.

        Packets are sent before the last core is called and at the end: in a process of frontend, selector and
        controller, answers leave before the controller plans. Attached functions are called at the end: a thread that
        is woken earlier would wait for this one to release the interpreter lock.
        """
        order, now_ns = self._order, self._clock()
        for hosted in order:
            hosted.tick_due = hosted.wakeup_ns <= now_ns
        for _ in range(CALLS_PER_TURN):
            for hosted in order:
                if hosted.mailbox or hosted.tick_due:
                    break
            else:
                break
            if self._outbox and hosted is order[-1]:
                self._flush()
            self._call_core(hosted)
        if self._outbox:
            self._flush()
        if self._deliveries:
            deliveries, self._deliveries = self._deliveries, []
            for deliver, message, buffers in deliveries:
                try:
                    deliver(message, buffers)
                except Exception as error:
                    self._report_fault(None, message, error)

    def has_turn_observers(self) -> bool:
        """Return whether `end_turn` calls any core."""
        return bool(self._turn_observers)

    def end_turn(self, now_ns: int, took_ns: int) -> None:
        """Report the duration of the turn that ends now to the cores that observe turns."""
        for core in self._turn_observers:
            if self.observer:
                self._observe(self.observer.observe_call, now_ns, core, "end_turn", (now_ns, took_ns))
            core.end_turn(now_ns, took_ns)

    def drain_core(self, core: Drains) -> None:
        """Have a core accept nothing new, and tick every core in the next turn."""
        if self.observer:
            self._observe(self.observer.observe_call, self._clock(), core, "drain", ())
        core.drain()
        self.wake_all()

    def _call_core(self, hosted: HostedCore) -> None:
        """Hand the core its messages, tick it, and pass on what it sends.

        An exception costs what the core would have done with the rest of that message, or of that tick. The other
        messages are handled, and what the core has put into `out` is sent.
        """
        core, mailbox, observer = hosted.core, hosted.mailbox, self.observer
        hosted.mailbox, hosted.tick_due = [], False
        self.handled += len(mailbox)
        now_ns = self._clock()
        for _, sender, message, buffers in mailbox:
            if observer:
                self._observe(observer.observe_message, now_ns, core, sender, message, buffers)
            try:
                core.handle(now_ns, sender, message, buffers)
            except Exception as error:
                self._report_fault(core, message, error)
        try:
            core.tick(now_ns)
            at_ns = core.wakeup_ns()
        except Exception as error:
            self._report_fault(core, None, error)
            at_ns = now_ns + FAULT_PAUSE_NS
        hosted.wakeup_ns = NEVER_NS if at_ns is None else at_ns
        outs, core.out = core.out, []
        if observer:
            self._observe(observer.observe_tick, now_ns, core, outs)
        self._pass_on(core.address, outs)

    def _pass_on(self, sender: str, outs: Sequence[Out]) -> None:
        hosted = self._hosted
        for out in outs:
            to = out.to
            if (neighbour := hosted.get(to)) is not None:
                neighbour.mailbox.append((to, sender, out.message, out.buffers))
            elif pending := self._outbox.get((to, sender)):
                pending[1].append(out.message)
                pending[2].extend(out.buffers)
            elif deliver := self.attached.get(to):
                self._deliveries.append((deliver, out.message, out.buffers))
            elif (route := self._route(to)) is not None:
                self._outbox[to, sender] = (route, [out.message], [*out.buffers])
            else:
                self.dropped += 1

    def _flush(self) -> None:
        """Send one packet to each peer that has messages."""
        outbox, self._outbox = self._outbox, {}
        packets: dict[Any, tuple[list[Envelope], list[Buffer]]] = {}
        for (to, sender), (route, messages, buffers) in outbox.items():
            envelope = Envelope(to, sender, messages)
            if packet := packets.get(route):
                packet[0].append(envelope)
                packet[1].extend(buffers)
            else:
                packets[route] = [envelope], buffers
        for route, packet in packets.items():
            try:
                self._send(route, *packet)
            except Exception:  # a message that cannot be encoded must not lose the others, nor the other packets
                self._send_separately(route, *packet)

    def _send_separately(self, route: Any, envelopes: Sequence[Envelope], buffers: Sequence[Buffer]) -> None:
        """Send each message of a packet in a packet of its own. Report those that cannot be sent."""
        end = 0
        for envelope in envelopes:
            for message in envelope.messages:
                begin, end = end, end + len(tensors(message))
                alone = Envelope(envelope.to, envelope.sender, [message])
                try:
                    self._send(route, [alone], list(buffers[begin:end]))
                except Exception as error:
                    self._report_fault(None, alone, error)

    def _observe(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call the observer. If it raises, remove it: the messages must still be handled."""
        try:
            call(*arguments)
        except Exception as error:
            self.observer = None
            self._report_fault(None, arguments, error)

    def _report_fault(self, core: Core | None, message: Any, error: Exception) -> None:
        """Count the fault and report it: a bug in one core must neither stop the others nor stay unseen."""
        self.faults += 1
        if core and self.observer:
            self.observer.observe_fault(self._clock(), core)
        self._on_fault(core, message, error)
