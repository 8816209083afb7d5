"""The second loop: drives the very same cores as the reactor, with a heap of events and a virtual clock.

Processes (process.py) take turns as reactors do; between them is a network (network.py), and they can be killed,
restarted, stalled and cut off at any time. Nothing here depends on anything but its arguments: same seed, same bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.clock import s
from horologe_common.core.event_queue import EventQueue
from horologe_common.core.protocol import role
from horologe_common.wire import PEER_HEADER_LIMIT, Envelope
from horologe_common.wire.frames import pack, unpack
from horologe_sim.engine.simulated_process import Arrival, Letters, Process

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.hosting import Tap
    from horologe_common.core.protocol import Core
    from horologe_sim.engine.network import Network

START_NS = s(1000)
"""Where virtual time begins: no clock of a real machine shows 0, so no core may take 0 for a time."""


class World:
    """All processes and what is between them. With `wire`, every packet is encoded and decoded as between sockets."""

    def __init__(self, network: Network, *, wire: bool = False, start_ns: int = START_NS) -> None:
        self.network = network
        self.wire = wire
        self.events = EventQueue(start_ns)
        self.tap: Tap | None = None
        self.processes: dict[str, Process] = {}
        self.packets = 0
        self._due: dict[str, Process] = {}
        self._voided: dict[tuple[str, int], bool] = {}
        self._cuts: dict[tuple[str, ...], int] = {}
        """How often each link was cut: what belongs to the connection before is lost."""
        self._apart: dict[tuple[str, ...], bool] = {}
        """Links that were cut and on which nobody has said Hello since."""

    @property
    def now_ns(self) -> int:
        return self.events.now_ns

    def add(
        self, name: str, make: Callable[[Process], Sequence[Core]], *, host: str = "host", clock_ns: int = 0
    ) -> Process:
        """A process, not yet started."""
        process = self.processes[name] = Process(self, name, make, host, clock_ns)
        return process

    def start(self, name: str) -> None:
        """Start (again): a new incarnation connects to every peer that is there."""
        process = self.processes[name]
        if process.alive:
            return
        process.begin()
        for peer in self.processes.values():
            if peer.alive and peer is not process and _linked(process, peer):
                self._connect(process, peer, process.incarnation, self._cut(process, peer))

    def kill(self, name: str, *, void: bool = False) -> None:
        """kill -9. Its peers notice a little later. `void`: what it had sent and is under way is lost with it."""
        process = self.processes[name]
        if not process.alive:
            return
        if void:
            self._voided[name, process.incarnation] = True
        addresses = tuple(process.cores)
        process.end()
        for peer in self.processes.values():
            if peer.alive and any(address in peer.routes for address in addresses):
                at_ns = self.network.arrival_ns(self.now_ns, name, peer.name) + self.network.settings.notice_ns
                self.events.schedule(at_ns, self._lost, peer, peer.incarnation, addresses)

    def stall(self, name: str, for_ns: int) -> None:
        """Its cores get no turn for a while; what comes in waits."""
        process = self.processes[name]
        process.stalled = True
        self.events.schedule(self.now_ns + for_ns, process.resume)

    def cut(self, name: str, for_ns: int) -> None:
        """Its connections to other services break, and what is under way on them is lost; `for_ns` later it connects
        again. Its peers learn of both by its Hello: a bound socket may find the old connection taken over.
        """
        process = self.processes[name]
        if not process.alive:
            return
        for peer in self.processes.values():
            if peer.alive and peer is not process and not peer.public and _linked(process, peer):
                link = _link(process, peer)
                cuts = self._cuts[link] = self._cuts.get(link, 0) + 1
                self._apart[link] = True
                process.lost(tuple(peer.cores))
                self.events.schedule(self.now_ns + for_ns, self._connect, process, peer, process.incarnation, cuts)

    def run(self, until_ns: int) -> None:
        """Let everything up to this time of the world's clock happen."""
        self._turns()
        events = self.events
        while (at_ns := events.next_ns()) is not None and at_ns <= until_ns:
            events.step()
            self._turns()
        events.now_ns = max(events.now_ns, until_ns)

    def core(self, address: str) -> Core:
        """The living core `role/instance`. Raises KeyError."""
        for process in self.processes.values():
            for known, core in process.cores.items():
                if known.partition("#")[0] == address:
                    return core
        raise KeyError(address)

    def check(self) -> None:
        """Every core's own laws."""
        self.events.check()
        for process in self.processes.values():
            for core in process.cores.values():
                if check := getattr(core, "check", None):
                    check()

    # what processes ask of their world

    def due(self, process: Process) -> None:
        """See `Around`."""
        self._due[process.name] = process

    def send(self, source: Process, target: Process, letters: Letters) -> None:
        """See `Around`."""
        self.packets += 1
        arrivals = _over_the_wire(letters) if self.wire else _by_hand(letters)
        if not self._apart or _link(source, target) not in self._apart:
            self._carry(source, target, self._receive, source, target, self._cut(source, target), arrivals)

    def _carry(self, source: Process, target: Process, call: Callable[..., None], *args: object) -> None:
        at_ns = self.network.arrival_ns(self.now_ns, source.name, target.name)
        self.events.schedule(at_ns, self._arrive, source.name, source.incarnation, call, args)

    def _arrive(self, name: str, incarnation: int, call: Callable[..., None], args: tuple[object, ...]) -> None:
        if (name, incarnation) not in self._voided:
            call(*args)

    def _receive(self, source: Process, target: Process, cuts: int, arrivals: list[Arrival]) -> None:
        if cuts == self._cut(source, target):
            target.receive(arrivals)

    def _cut(self, one: Process, other: Process) -> int:
        return self._cuts.get(_link(one, other), 0) if self._cuts else 0

    def _connect(self, process: Process, peer: Process, incarnation: int, cuts: int) -> None:
        if process.alive and process.incarnation == incarnation:
            self._carry(process, peer, self._hello, peer, process, incarnation, cuts)

    def _hello(self, here: Process, peer: Process, incarnation: int, cuts: int) -> None:
        """Whoever says it again has lost its connection."""
        if self._reaches(here, peer, incarnation, cuts):
            self._apart.pop(_link(here, peer), None)
            here.lost(tuple(peer.cores))
            here.joined(peer)
            self._carry(here, peer, self._welcome, peer, here, here.incarnation, cuts)

    def _welcome(self, here: Process, peer: Process, incarnation: int, cuts: int) -> None:
        if self._reaches(here, peer, incarnation, cuts):
            here.joined(peer)

    def _reaches(self, here: Process, peer: Process, incarnation: int, cuts: int) -> bool:
        """Whether a handshake of `peer` does, after so many cuts of the link."""
        here_still = here.alive and peer.alive and peer.incarnation == incarnation
        return here_still and cuts == self._cut(here, peer)

    def _lost(self, here: Process, incarnation: int, addresses: Sequence[str]) -> None:
        if here.alive and here.incarnation == incarnation:
            here.lost(addresses)

    def _turns(self) -> None:
        now_ns, turn_ns = self.events.now_ns, self.network.settings.turn_ns
        while self._due:
            due, self._due = self._due, {}
            for process in due.values():
                if process.free_ns > now_ns:
                    if not process.waiting:
                        process.waiting = True
                        self.events.schedule(process.free_ns, self.due, process)
                else:
                    process.waiting, process.free_ns = False, now_ns + turn_ns
                    process.turn()


def _linked(one: Process, other: Process) -> bool:
    """Who has a connection: clients to frontends only, workers not to one another, all else to each other."""
    roles = [[role(address) for address in process.cores] for process in (one, other)]
    if one.public or other.public:
        return "frontend" in roles[0] + roles[1]
    return not ("worker" in roles[0] and "worker" in roles[1])


def _link(one: Process, other: Process) -> tuple[str, ...]:
    return tuple(sorted((one.name, other.name)))


def _by_hand(letters: Letters) -> list[Arrival]:
    return [(*ends, *message) for ends, messages in letters.items() for message in messages]


def _over_the_wire(letters: Letters) -> list[Arrival]:
    """What the receiver makes of the bytes."""
    frames = pack(
        [Envelope(to, sender, [message for message, _ in messages]) for (to, sender), messages in letters.items()],
        [buffer for messages in letters.values() for _, buffers in messages for buffer in buffers],
    )
    return list(unpack([memoryview(frame) for frame in frames], PEER_HEADER_LIMIT))
