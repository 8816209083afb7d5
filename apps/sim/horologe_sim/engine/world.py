"""The world: processes on virtual time, and the network between them.

Processes (simulated_process.py) run the same `CoreHost` as real ones do. They can be killed, restarted, stalled and
disconnected at any time. Nothing depends on anything but the arguments: the same seed gives the same bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.clock import s
from horologe_common.core.protocol import instance, role
from horologe_common.wire import PEER_HEADER_LIMIT
from horologe_common.wire.frames import pack, tensors, unpack
from horologe_sim.engine.event_queue import EventQueue
from horologe_sim.engine.simulated_process import Process

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.hosting import CoreObserver
    from horologe_common.core.protocol import Arrival, Buffer, Core
    from horologe_common.wire import Envelope
    from horologe_sim.engine.network import Network

START_NS = s(1000)
"""Start of virtual time. The clock of a real machine does not show 0, so no core may rely on small times."""


class World:
    """All processes and the network. With `wire`, every packet is encoded and decoded as it is between sockets."""

    def __init__(self, network: Network, *, wire: bool = False) -> None:
        self.network = network
        self.wire = wire
        self.events = EventQueue(START_NS)
        self.observer: CoreObserver | None = None
        self.processes: dict[str, Process] = {}
        self.packets = 0
        self._turns_due: dict[str, Process] = {}
        self._lost_packets_of: dict[tuple[str, int], bool] = {}
        """Incarnations whose packets in flight were lost with them."""
        self._cuts: dict[tuple[str, ...], int] = {}
        """Number of cuts by link. A packet of a connection before the last cut is lost."""
        self._disconnected: dict[tuple[str, ...], bool] = {}
        """Links that were cut and have had no Hello since."""

    @property
    def now_ns(self) -> int:
        return self.events.now_ns

    def add(
        self, name: str, make_cores: Callable[[Process], Sequence[Core]], *, host: str = "host", clock_ns: int = 0
    ) -> Process:
        """Add a process. `start` starts it."""
        process = self.processes[name] = Process(self, name, make_cores, host, clock_ns)
        return process

    def start(self, name: str) -> None:
        """Start or restart a process: the new incarnation connects to every peer that is alive."""
        process = self.processes[name]
        if process.alive:
            return
        process.start()
        for peer in self.processes.values():
            if peer.alive and peer is not process and _are_linked(process, peer):
                self._connect(process, peer, process.incarnation, self._cut_count(process, peer))

    def kill(self, name: str, *, void: bool = False) -> None:
        """Kill a process as `kill -9` does. Its peers detect it later. With `void`, its packets in flight are lost."""
        process = self.processes[name]
        if not process.alive:
            return
        if void:
            self._lost_packets_of[name, process.incarnation] = True
        addresses = tuple(process.cores)
        process.kill()
        for peer in self.processes.values():
            if peer.alive and any(address in peer.routes for address in addresses):
                at_ns = self.network.arrival_ns(self.now_ns, name, peer.name) + self.network.settings.notice_ns
                self.events.schedule(at_ns, self._on_disconnect, peer, peer.incarnation, addresses)

    def stall(self, name: str, for_ns: int) -> None:
        """Give a process no turn for `for_ns`. Messages that arrive meanwhile wait in its mailboxes."""
        process = self.processes[name]
        process.stalled = True
        self.events.schedule(self.now_ns + for_ns, process.resume)

    def cut(self, name: str, for_ns: int) -> None:
        """Break the connections of a process to other services; packets in flight are lost. Reconnect after `for_ns`.

        The peers detect it only when its Hello arrives: a bound socket may find that the old connection was replaced.
        """
        process = self.processes[name]
        if not process.alive:
            return
        for peer in self.processes.values():
            if peer.alive and peer is not process and not peer.public and _are_linked(process, peer):
                link = _link(process, peer)
                cuts = self._cuts[link] = self._cuts.get(link, 0) + 1
                self._disconnected[link] = True
                process.remove_peer(tuple(peer.cores))
                self.events.schedule(self.now_ns + for_ns, self._connect, process, peer, process.incarnation, cuts)

    def run(self, until_ns: int) -> None:
        """Process all events up to `until_ns` on the world's clock."""
        self._run_turns()
        events = self.events
        while (at_ns := events.next_ns()) is not None and at_ns <= until_ns:
            events.step()
            self._run_turns()
        events.now_ns = max(events.now_ns, until_ns)

    def core(self, address: str) -> Core:
        """Return the living core `role/instance`. Raises KeyError if there is none."""
        for process in self.processes.values():
            for core_address, core in process.cores.items():
                if instance(core_address) == address:
                    return core
        raise KeyError(address)

    def check(self) -> None:
        """Check the invariants of the event queue and of every core."""
        self.events.check()
        for process in self.processes.values():
            for core in process.cores.values():
                if check := getattr(core, "check", None):
                    check()

    def schedule_turn(self, process: Process) -> None:
        """Give the process a turn before the clock advances, or once its last turn is over."""
        self._turns_due[process.name] = process

    def send_packet(self, source: Process, target: Process, envelopes: list[Envelope], buffers: list[Buffer]) -> None:
        """Send a packet from a process to another."""
        self.packets += 1
        arrivals = _encode_and_decode(envelopes, buffers) if self.wire else _unpack(envelopes, buffers)
        if not self._disconnected or _link(source, target) not in self._disconnected:
            self._carry(source, target, self._receive, source, target, self._cut_count(source, target), arrivals)

    def _carry(self, source: Process, target: Process, call: Callable[..., None], *args: object) -> None:
        at_ns = self.network.arrival_ns(self.now_ns, source.name, target.name)
        self.events.schedule(at_ns, self._arrive, source.name, source.incarnation, call, args)

    def _arrive(self, name: str, incarnation: int, call: Callable[..., None], args: tuple[object, ...]) -> None:
        if (name, incarnation) not in self._lost_packets_of:
            call(*args)

    def _receive(self, source: Process, target: Process, cuts: int, arrivals: list[Arrival]) -> None:
        if cuts == self._cut_count(source, target):
            target.receive(arrivals)

    def _cut_count(self, process: Process, peer: Process) -> int:
        return self._cuts.get(_link(process, peer), 0) if self._cuts else 0

    def _connect(self, process: Process, peer: Process, incarnation: int, cuts: int) -> None:
        """Send a Hello, unless the process has ended, or the peer has connected to it since."""
        connected = any(address in process.routes for address in peer.cores)
        if process.alive and process.incarnation == incarnation and not connected:
            self._carry(process, peer, self._on_hello, peer, process, incarnation, cuts)

    def _on_hello(self, process: Process, peer: Process, incarnation: int, cuts: int) -> None:
        """Add the peer. A peer that sends a second Hello has lost its connection, so it is removed first."""
        if self._is_current(process, peer, incarnation, cuts):
            self._disconnected.pop(_link(process, peer), None)
            process.remove_peer(tuple(peer.cores))
            process.add_peer(peer)
            self._carry(process, peer, self._on_welcome, peer, process, process.incarnation, cuts)

    def _on_welcome(self, process: Process, peer: Process, incarnation: int, cuts: int) -> None:
        if self._is_current(process, peer, incarnation, cuts):
            process.add_peer(peer)

    def _is_current(self, process: Process, peer: Process, incarnation: int, cuts: int) -> bool:
        """Return whether both are alive, the peer is the same incarnation and the link was not cut since."""
        both_alive = process.alive and peer.alive and peer.incarnation == incarnation
        return both_alive and cuts == self._cut_count(process, peer)

    def _on_disconnect(self, process: Process, incarnation: int, addresses: Sequence[str]) -> None:
        if process.alive and process.incarnation == incarnation:
            process.remove_peer(addresses)

    def _run_turns(self) -> None:
        now_ns, settings = self.events.now_ns, self.network.settings
        while self._turns_due:
            turns_due, self._turns_due = self._turns_due, {}
            for process in turns_due.values():
                if process.free_ns > now_ns:
                    if not process.turn_pending:
                        process.turn_pending = True
                        self.events.schedule(process.free_ns, self.schedule_turn, process)
                else:
                    process.run_turn(settings.turn_ns, settings.message_ns)


def _are_linked(process: Process, peer: Process) -> bool:
    """Return whether two processes connect: clients to frontends only, workers not to workers, all others."""
    roles = [[role(address) for address in either.cores] for either in (process, peer)]
    if process.public or peer.public:
        return "frontend" in roles[0] + roles[1]
    return not ("worker" in roles[0] and "worker" in roles[1])


def _link(process: Process, peer: Process) -> tuple[str, ...]:
    return tuple(sorted((process.name, peer.name)))


def _unpack(envelopes: list[Envelope], buffers: list[Buffer]) -> list[Arrival]:
    """Return the messages of a packet, each with its tensors' bytes, without copying or encoding."""
    arrivals: list[Arrival] = []
    begin = 0
    for envelope in envelopes:
        for message in envelope.messages:
            end = begin + len(tensors(message)) if buffers else begin
            arrivals.append((envelope.to, envelope.sender, message, buffers[begin:end]))
            begin = end
    return arrivals


def _encode_and_decode(envelopes: list[Envelope], buffers: list[Buffer]) -> list[Arrival]:
    frames = pack(envelopes, buffers)
    return list(unpack([memoryview(frame) for frame in frames], PEER_HEADER_LIMIT))
