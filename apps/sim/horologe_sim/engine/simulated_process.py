"""A process of the simulated cluster: hosts cores, and takes turns with them exactly as the reactor does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from horologe_common.core.protocol import Buffer, Core, PeerConnected, PeerDisconnected, role

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.event_queue import EventQueue
    from horologe_common.core.hosting import Tap

ROUNDS_A_TURN = 64
"""As the reactor: what its cores still have for each other then waits for the next turn."""
IDLE_TURNS = 1000
IDLE_NS = 100_000
"""So many turns in which nothing came and nothing was put out, closer together than this: a core spins."""

Arrival = tuple[str, str, Any, "Sequence[Buffer]"]
"""`(to, sender, message, buffers)`"""
Letters = dict[tuple[str, str], list[tuple[Any, "Sequence[Buffer]"]]]
"""Messages of one packet, each with its tensors' bytes, by `(to, sender)`."""


class Stuck(AssertionError):
    """A core asks to be woken again and again, for nothing: a real process would take a processor for itself."""


class Around(Protocol):
    """What a process needs of its world."""

    events: EventQueue
    tap: Tap | None

    def due(self, process: Process) -> None:
        """Give this process a turn before the clock goes on."""

    def send(self, source: Process, target: Process, letters: Letters) -> None:
        """A packet on its way."""


class Process:
    """One process. `make` gives its cores, anew for every start: incarnations share nothing but the address book.

    `clock_ns` is what its clock is ahead of the world's; processes with the same `host` have the same clock.
    """

    def __init__(
        self, world: Around, name: str, make: Callable[[Process], Sequence[Core]], host: str = "host", clock_ns: int = 0
    ) -> None:
        self.world = world
        self.name = name
        self.host = host
        self.clock_ns = clock_ns
        self.make = make
        self.incarnation = 0
        self.alive = False
        self.stalled = False
        self.dropped = 0
        """Messages without a route or without a core: what was meant for a dead incarnation."""
        self.cores: dict[str, Core] = {}
        self.routes: dict[str, Process] = {}
        self._attached: dict[str, Callable[[Any, Sequence[Buffer]], None]] = {}
        self._inbox: list[Arrival] = []
        self._timer: int | None = None
        self._timer_ns: int | None = None
        self.free_ns = 0
        """World's time until which its last turn takes: what comes before is handled in one drain."""
        self.waiting = False
        """For that time, with something to do."""
        self._idle_turns = 0
        self._idle_since_ns = 0

    @property
    def now_ns(self) -> int:
        """The time by its own clock."""
        return self.world.events.now_ns + self.clock_ns

    @property
    def public(self) -> bool:
        """A client: its peers are not told that it has come, only that it has gone."""
        return any(role(address) == "client" for address in self.cores)

    def address(self, of: str, number: str = "0") -> str:
        """Address of a core of this incarnation. Lengths are those of real ones, which matters to nobody."""
        return f"{of}/{number}#{self.incarnation:08x}"

    def attach(self, address: str, deliver: Callable[[Any, Sequence[Buffer]], None]) -> None:
        """Give everything cores put out for `address` to `deliver`."""
        self._attached[address] = deliver

    def post(self, sender: str, to: str, message: Any, buffers: Sequence[Buffer] = ()) -> None:
        """Hand a hosted core a message in the next turn, before the clock goes on."""
        self._inbox.append((to, sender, message, buffers))
        self.world.due(self)

    def at(self, at_ns: int, call: Callable[..., None], *args: Any) -> int:
        """Have `call` happen at `at_ns` of its own clock, if this incarnation lives to see it."""
        return self.world.events.schedule(at_ns - self.clock_ns, self._call, self.incarnation, call, args)

    def begin(self) -> None:
        """A new incarnation."""
        self.incarnation += 1
        self.alive = True
        self.cores = {core.address: core for core in self.make(self)}
        for core in self.cores.values():
            for other in self.cores:
                if other != core.address:
                    self.post(other, core.address, PeerConnected(other, self.host))
        self.world.due(self)

    def end(self) -> None:
        """kill -9."""
        self.alive = self.stalled = False
        self.cores = {}
        self.routes.clear()
        self._attached.clear()
        self._inbox = []
        self._arm()

    def joined(self, peer: Process) -> None:
        """The cores of a peer can be reached."""
        for address in peer.cores:
            known = address in self.routes
            self.routes[address] = peer
            if not known and not peer.public:
                for core in self.cores:
                    self.post(address, core, PeerConnected(address, peer.host))

    def lost(self, addresses: Sequence[str]) -> None:
        """The cores of a peer that has died."""
        for address in addresses:
            if self.routes.pop(address, None):
                for core in self.cores:
                    self.post(address, core, PeerDisconnected(address))

    def receive(self, arrivals: Sequence[Arrival]) -> None:
        """A packet has come."""
        if self.alive:
            self._inbox.extend(arrivals)
            self.world.due(self)

    def resume(self) -> None:
        """The end of a stall."""
        self.stalled = False
        if self.alive:
            self.world.due(self)

    def turn(self) -> None:
        """The reactor's turn, at one instant of virtual time."""
        if not self.alive or self.stalled:
            return
        now_ns = self.now_ns
        inbox, self._inbox = self._inbox, []
        quiet = not inbox
        packets: dict[str, tuple[Process, Letters]] = {}
        due: dict[str, Core] = {
            core.address: core
            for core in self.cores.values()
            if (at_ns := core.wakeup_ns()) is not None and at_ns <= now_ns
        }
        for _ in range(ROUNDS_A_TURN):
            if not inbox and not due:
                break
            inbox = self._round(now_ns, inbox, due, packets)
            due = {}
        if inbox:
            self._inbox[:0] = inbox
            self.world.due(self)
        for target, letters in packets.values():
            self.world.send(self, target, letters)
        self._arm()
        self._watch(now_ns, quiet and not packets)

    def _round(
        self, now_ns: int, inbox: list[Arrival], due: dict[str, Core], packets: dict[str, tuple[Process, Letters]]
    ) -> list[Arrival]:
        tap = self.world.tap
        for to, sender, message, buffers in inbox:
            if (core := self.cores.get(to)) is None:
                self.dropped += 1
                continue
            if tap:
                tap.handled(now_ns, core, sender, message, buffers)
            due[to] = core
            core.handle(now_ns, sender, message, buffers)
        local: list[Arrival] = []
        for core in due.values():
            core.tick(now_ns)
            outs, core.out = core.out, []
            if tap:
                tap.ticked(now_ns, core, outs)
            for out in outs:
                to, message, buffers = out.to, out.message, out.buffers
                if to in self.cores:
                    local.append((to, core.address, message, buffers))
                elif deliver := self._attached.get(to):
                    deliver(message, buffers)
                elif target := self.routes.get(to):
                    letters = packets.setdefault(target.name, (target, {}))[1]
                    letters.setdefault((to, core.address), []).append((message, buffers))
                else:
                    self.dropped += 1
        return local

    def _arm(self) -> None:
        """One timer, at the earliest time any core asks for; a superseded one is dropped."""
        at_ns = min((at for core in self.cores.values() if (at := core.wakeup_ns()) is not None), default=None)
        if at_ns == self._timer_ns:
            return
        if self._timer is not None:
            self.world.events.cancel(self._timer)
        self._timer_ns, self._timer = at_ns, None
        if at_ns is not None:
            self._timer = self.at(at_ns, self._timeout)

    def _timeout(self) -> None:
        self._timer = self._timer_ns = None
        self.world.due(self)

    def _call(self, incarnation: int, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self.alive and incarnation == self.incarnation:
            call(*args)

    def _watch(self, now_ns: int, idle: bool) -> None:
        """Raise `Stuck` when its cores spin."""
        if not idle:
            self._idle_turns, self._idle_since_ns = 0, now_ns
            return
        self._idle_turns += 1
        if self._idle_turns >= IDLE_TURNS:
            if now_ns - self._idle_since_ns < IDLE_TURNS * IDLE_NS:
                wanted = {core.address: core.wakeup_ns() for core in self.cores.values()}
                raise Stuck(f"{self.name}: {IDLE_TURNS} turns for nothing up to {now_ns} ns; asked for are {wanted}")
            self._idle_turns, self._idle_since_ns = 0, now_ns
