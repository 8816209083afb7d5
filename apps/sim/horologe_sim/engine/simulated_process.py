"""A process of the simulated cluster: the driver of a `CoreHost` on virtual time and a simulated network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_common.clock import NEVER_NS
from horologe_common.core.hosting import CoreHost, raise_fault
from horologe_common.core.protocol import PeerConnected, PeerDisconnected, role

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Arrival, Buffer, Core
    from horologe_common.wire import Envelope
    from horologe_sim.engine.world import World

IDLE_TURNS = 1000
IDLE_NS = 100_000
"""This many turns without a message in or out, closer together than this on average: a core is in a busy loop."""


class BusyLoopError(AssertionError):
    """A core asks for a tick again and again and sends nothing. On a real machine it would occupy a processor."""


class Process:
    """A process. `make_cores` makes new cores at every start: incarnations share only their addresses' prefix.

    `clock_ns` is the offset of its clock to the world's. Processes with the same `host` have the same clock.
    """

    def __init__(
        self,
        world: World,
        name: str,
        make_cores: Callable[[Process], Sequence[Core]],
        host: str = "host",
        clock_ns: int = 0,
    ) -> None:
        self.world = world
        self.name = name
        self.host = host
        self.clock_ns = clock_ns
        self.make_cores = make_cores
        self.incarnation = 0
        self.alive = False
        self.stalled = False
        self.cores: dict[str, Core] = {}
        self.routes: dict[str, Process] = {}
        self.route = self.routes.get
        """Part of `Transport`."""
        self.free_ns = 0
        """End of the current turn in the world's time: a message that arrives before is handled in the next turn."""
        self.turn_pending = False
        """True if a turn is scheduled for `free_ns`."""
        self._held: list[tuple[int, Callable[..., None], tuple[Any, ...]]] = []
        """Calls that were due while the process stalled."""
        self._hosting = CoreHost((), self._clock, self, raise_fault)
        self._attached: dict[str, Callable[[Any, Sequence[Buffer]], None]] = {}
        self._timer: int | None = None
        self._timer_ns = NEVER_NS
        self._dropped = 0
        self._sent = False
        self._idle_turns = 0
        self._idle_since_ns = 0

    @property
    def now_ns(self) -> int:
        """The time on the clock of this process."""
        return self.world.events.now_ns + self.clock_ns

    @property
    def public(self) -> bool:
        """Return whether this is a client: peers get an event when it disconnects, but not when it connects."""
        return any(role(address) == "client" for address in self.cores)

    @property
    def dropped(self) -> int:
        """Messages without a core or a route, over all incarnations: those for a dead incarnation."""
        return self._dropped + self._hosting.dropped

    def address(self, role: str, number: str = "0") -> str:
        """Return the address of a core of this incarnation. It is as long as a real one."""
        return f"{role}/{number}#{self.incarnation:08x}"

    def attach(self, address: str, deliver: Callable[[Any, Sequence[Buffer]], None]) -> None:
        """Pass messages that cores send to `address` to `deliver`. For `make_cores`."""
        self._attached[address] = deliver

    def post(self, sender: str, to: str, message: Any, buffers: Sequence[Buffer] = ()) -> None:
        """Put a message into a core's mailbox; the core handles it in the next turn."""
        self.receive([(to, sender, message, buffers)])

    def schedule(self, at_ns: int, call: Callable[..., None], *args: Any) -> int:
        """Schedule `call` at `at_ns` of this process's clock, or at the end of a stall.

        It is skipped if this incarnation has ended by then.
        """
        return self.world.events.schedule(at_ns - self.clock_ns, self._call, self.incarnation, call, args)

    def start(self) -> None:
        """Start a new incarnation."""
        self.incarnation += 1
        self.alive = True
        self._dropped += self._hosting.dropped
        cores = self.make_cores(self)
        self.cores = {core.address: core for core in cores}
        self._hosting = CoreHost(cores, self._clock, self, raise_fault)
        self._hosting.attached = self._attached
        self._hosting.introduce_cores(self.host)
        self.world.schedule_turn(self)

    def kill(self) -> None:
        """End the incarnation at once, as `kill -9` does."""
        self.alive = self.stalled = False
        self.cores = {}
        self.routes.clear()
        self._attached = {}
        self._set_timer(NEVER_NS)

    def add_peer(self, peer: Process) -> None:
        """Add routes to the cores of a peer that has connected."""
        for address in peer.cores:
            is_new = address not in self.routes
            self.routes[address] = peer
            if is_new and not peer.public:
                for core in self.cores:
                    self.post(address, core, PeerConnected(address, peer.host))

    def remove_peer(self, addresses: Sequence[str]) -> None:
        """Remove the routes to the cores of a peer that has disconnected."""
        for address in addresses:
            if self.routes.pop(address, None):
                for core in self.cores:
                    self.post(address, core, PeerDisconnected(address))

    def receive(self, arrivals: Sequence[Arrival]) -> None:
        """Put the messages of a packet into the mailboxes of their cores."""
        if self.alive:
            self._hosting.enqueue(arrivals)
            self.world.schedule_turn(self)

    def resume(self) -> None:
        """End a stall."""
        self.stalled = False
        held, self._held = self._held, []
        for due in held:
            self._call(*due)
        if self.alive:
            self.world.schedule_turn(self)

    def send(self, route: Process, envelopes: list[Envelope], buffers: list[Buffer]) -> None:
        """Part of `Transport`."""
        self._sent = True
        self.world.send_packet(self, route, envelopes, buffers)

    def run_turn(self, turn_ns: int, message_ns: int) -> None:
        """Run a turn at one instant of virtual time. It occupies the process for `turn_ns` and for its messages."""
        now_ns = self.world.events.now_ns
        self.turn_pending, self.free_ns = False, now_ns + turn_ns
        if not self.alive or self.stalled:
            return
        hosting, handled = self._hosting, self._hosting.handled
        hosting.observer = self.world.observer
        received, self._sent = hosting.has_messages(), False
        hosting.run_turn()
        if message_ns and not self.public:
            self.free_ns += message_ns * (hosting.handled - handled)
            hosting.end_turn(self.free_ns + self.clock_ns, self.free_ns - now_ns)
        if hosting.has_messages():
            self.world.schedule_turn(self)
        self._set_timer(hosting.wakeup_ns())
        self._check_progress(received or self._sent)

    def _clock(self) -> int:
        return self.world.events.now_ns + self.clock_ns

    def _set_timer(self, at_ns: int) -> None:
        """Keep one timer, at the earliest time at which a core needs a tick."""
        if at_ns == self._timer_ns:
            return
        if self._timer is not None:
            self.world.events.cancel(self._timer)
        self._timer_ns = at_ns
        self._timer = None if at_ns == NEVER_NS else self.schedule(at_ns, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_ns = None, NEVER_NS
        self.world.schedule_turn(self)

    def _call(self, incarnation: int, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self.stalled:
            self._held.append((incarnation, call, args))
        elif self.alive and incarnation == self.incarnation:
            call(*args)

    def _check_progress(self, progressed: bool) -> None:
        """Raise `BusyLoopError` after too many turns without a message in or out in too short a time."""
        now_ns = self.now_ns
        if progressed:
            self._idle_turns, self._idle_since_ns = 0, now_ns
            return
        self._idle_turns += 1
        if self._idle_turns >= IDLE_TURNS:
            if now_ns - self._idle_since_ns < IDLE_TURNS * IDLE_NS:
                wakeups_ns = {core.address: core.wakeup_ns() for core in self.cores.values()}
                raise BusyLoopError(
                    f"{self.name}: {IDLE_TURNS} turns without a message up to {now_ns} ns; wakeups: {wakeups_ns}"
                )
            self._idle_turns, self._idle_since_ns = 0, now_ns
