"""The cores of one process: their mail, handed over until all is quiet, and what leaves the process.

A message to a core beside costs an append here; one to a peer waits in the letter that the turn sends there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from horologe_common.clock import NEVER_NS, monotonic_ns
from horologe_common.service.log import logger
from horologe_common.wire import Envelope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from horologe_common.core.protocol import Buffer, Core, Out
    from horologe_common.transport.links import Arrival, Links
    from horologe_common.transport.peers import Route

    Deliver = Callable[[Any, Sequence[Buffer]], None]

log = logger("reactor")

ROUNDS_A_TURN = 64


class Tap(Protocol):
    """Sees what the cores see (recorder.py)."""

    def handled(self, now_ns: int, core: Core, sender: str, message: Any, buffers: Sequence[Buffer]) -> None: ...

    def ticked(self, now_ns: int, core: Core, outs: Sequence[Out]) -> None: ...

    def faulted(self, now_ns: int, core: Core) -> None: ...


class Hosted:
    """A core, what it has not been handed yet, and when it wants to be ticked."""

    __slots__ = ("core", "due", "mail", "wakeup_ns")

    def __init__(self, core: Core) -> None:
        self.core = core
        self.mail: list[Arrival] = []
        self.wakeup_ns = 0
        self.due = False


class Cores:
    """In the order in which they go first. `attached`: addresses in this process that are no cores."""

    def __init__(self, cores: Sequence[Core], links: Links) -> None:
        self.links = links
        self.tap: Tap | None = None
        self.faults = 0
        self.attached: dict[str, Deliver] = {}
        self._hosted = {core.address: Hosted(core) for core in cores}
        self._order = list(self._hosted.values())
        self._letters: dict[tuple[str, str], tuple[Route, list[Any], list[Buffer]]] = {}
        self._deliveries: list[tuple[Deliver, Any, Sequence[Buffer]]] = []

    def __iter__(self) -> Iterator[Core]:
        return (hosted.core for hosted in self._order)

    def put(self, arrivals: Sequence[Arrival]) -> None:
        """Mail; what is for nobody here is dropped."""
        for arrival in arrivals:
            if hosted := self._hosted.get(arrival[0]):
                hosted.mail.append(arrival)
            else:
                self.links.dropped += 1

    def busy(self) -> bool:
        """Whether there still is mail."""
        return any(hosted.mail for hosted in self._order)

    def wake_all(self) -> None:
        """Have every core ticked in the next turn."""
        for hosted in self._order:
            hosted.wakeup_ns = 0

    def wakeup_ns(self) -> int:
        """The earliest time any core asks for."""
        return min(hosted.wakeup_ns for hosted in self._order)

    def work(self, now_ns: int) -> None:
        """Until all is quiet, the first core with mail goes next: answers leave before anything is planned.

        Deliveries come last: a thread woken earlier would wait for this one to let go of the interpreter.
        """
        order = self._order
        for hosted in order:
            hosted.due = hosted.wakeup_ns <= now_ns
        for _ in range(ROUNDS_A_TURN):
            for hosted in order:
                if hosted.mail or hosted.due:
                    break
            else:
                break
            if self._letters and hosted is order[-1]:
                self._send()
            self._turn(hosted)
        self._send()
        deliveries, self._deliveries = self._deliveries, []
        for deliver, message, buffers in deliveries:
            deliver(message, buffers)

    def _turn(self, hosted: Hosted) -> None:
        """Hand over the mail, tick, and pass on what comes out."""
        core, mail, tap = hosted.core, hosted.mail, self.tap
        hosted.mail, hosted.due = [], False
        now_ns = monotonic_ns()
        for _, sender, message, buffers in mail:
            if tap:
                tap.handled(now_ns, core, sender, message, buffers)
            try:
                core.handle(now_ns, sender, message, buffers)
            except Exception:
                self._fault(core, message)
        try:
            core.tick(now_ns)
        except Exception:
            self._fault(core, None)
        outs, core.out = core.out, []
        if tap:
            tap.ticked(now_ns, core, outs)
        at_ns = core.wakeup_ns()
        hosted.wakeup_ns = NEVER_NS if at_ns is None else at_ns
        self._pass_on(core.address, outs)

    def _pass_on(self, sender: str, outs: Sequence[Out]) -> None:
        for out in outs:
            to = out.to
            if beside := self._hosted.get(to):
                beside.mail.append((to, sender, out.message, out.buffers))
            elif letter := self._letters.get((to, sender)):
                letter[1].append(out.message)
                letter[2].extend(out.buffers)
            elif deliver := self.attached.get(to):
                self._deliveries.append((deliver, out.message, out.buffers))
            elif route := self.links.route(to):
                self._letters[to, sender] = (route, [out.message], [*out.buffers])
            else:
                self.links.dropped += 1

    def _send(self) -> None:
        """One packet to each peer that has letters."""
        letters, self._letters = self._letters, {}
        packets: dict[Route, tuple[list[Envelope], list[Buffer]]] = {}
        for (to, sender), (route, messages, buffers) in letters.items():
            letter = Envelope(to, sender, messages)
            if packet := packets.get(route):
                packet[0].append(letter)
                packet[1].extend(buffers)
            else:
                packets[route] = [letter], buffers
        for route, packet in packets.items():
            try:
                self.links.send(route, *packet)
            except Exception:  # what cannot be encoded must not take the packets to others with it
                self.faults += 1
                log.exception("packet fault", to=[letter.to for letter in packet[0]])

    def _fault(self, core: Core, message: Any) -> None:
        """A bug in a core must not silence the others, nor go unseen."""
        self.faults += 1
        if self.tap:
            self.tap.faulted(monotonic_ns(), core)
        log.exception("core fault", core=core.address, message=type(message).__name__)
