"""A world of the controller alone: the real core in a `CoreHost`, with devices and clients that it calls directly.

Devices, windows and turns are those of a simulated cluster (`engine/world.py`). There are no other processes, packets
and tensors, and an action is one event, so that an hour at thousands of requests per second takes minutes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.clock import NEVER_NS, s, us
from horologe_common.core.hosting import CoreHost, NoTransport, raise_fault
from horologe_common.core.protocol import PeerConnected
from horologe_common.status import Status
from horologe_common.wire import Infer, Load, Outcome, Register, Result, Share, Submit, Unload
from horologe_controller.core.controller import Controller
from horologe_controller.settings import ControllerSettings
from horologe_sim.controller_only.direct_device import DeviceEntry, DirectDevice
from horologe_sim.controller_only.request_load import Open, OpenLoop
from horologe_sim.engine.event_queue import EventQueue
from horologe_sim.engine.noise import NOISES, Noise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_sim.controller_only.direct_device import Ended
    from horologe_sim.controller_only.request_load import Chunk, DynamicRequest
    from horologe_sim.engine.ledger import Ledger
    from horologe_sim.engine.simulated_device import SimModel

HOST = "host"
CLIENT = "selector/load#00000001"
START_NS = s(1000)
PAGES = 1407
"""16 MiB pages per device: 201 models like ResNet-50 with 7 pages each (Clockwork section 6.2)."""
BEST_EFFORT_NS, PATIENCE_NS = s(30), s(2)
PROGRESS_NS = s(1)


class ClusterSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The cluster of a run."""

    devices: int = 1
    pages: int = PAGES
    noise: Noise = NOISES["clockwork"]
    settle_ns: int = s(3)
    """Time before the load, in which free pages are filled."""
    client_ns: int = us(100)
    """Delay between a client and the edge."""
    worker_ns: int = us(60)
    """Delay from the controller to a worker, and from a worker to the controller and to the edge."""
    grace_ns: int = 0
    """Time after the SLO until a client gets its final answer. Late outputs are sent until then."""
    turn_ns: int = us(50)
    """Duration of a turn of the controller. A message that arrives meanwhile is handled in the next turn."""
    controller: ControllerSettings = ControllerSettings()

    @property
    def answer_ns(self) -> int:
        """Delay from a worker to the client."""
        return self.worker_ns + self.client_ns


class ControllerWorld:
    """A run. Requests name a model by its index in `models`.

    `devices`: empty for as many as in the settings, each with all models.
    """

    def __init__(
        self,
        setting: ClusterSettings,
        models: Sequence[SimModel],
        ledger: Ledger,
        seed: int,
        chunks: Iterable[Chunk] = (),
        devices: Sequence[DeviceEntry] = (),
    ) -> None:
        self.setting = setting
        self.seed = seed
        self.ledger = ledger
        self.controller = Controller("controller/0#00000001", setting.controller, HOST)
        self.begin_ns = START_NS + setting.settle_ns
        self.open: dict[int, Open] = {}
        self.now_ns = START_NS
        """Time of the controller's process. A turn makes it later than that of `events`."""
        self.events = EventQueue(START_NS)
        self.solo_ns: dict[int, int] = {}
        """Execution time alone of each request of a dynamic model, by input id."""
        self.devices: dict[str, DirectDevice] = {}
        """Connected devices by address."""
        self._keys = [model.report.spec.key for model in models]
        self._open_loop = OpenLoop(chunks)
        self._last_id = 0
        self._free_ns = self._wake_ns = START_NS
        self._loaded = dict.fromkeys(self._keys, 0)
        self._entries = devices or [DeviceEntry(models)] * setting.devices
        self._host = self._make_host()
        self._host.introduce_cores(HOST)
        self._host.attached[CLIENT] = self._to_client
        self._enqueue(CLIENT, PeerConnected(CLIENT, HOST))
        for number in range(len(self._entries)):
            self._connect(number)
        self._run_turn()

    def _make_host(self) -> CoreHost:
        return CoreHost([self.controller], lambda: self.now_ns, NoTransport(), raise_fault)

    def schedule(self, at_ns: int, call: Callable[[int, Any], None], argument: Any) -> None:
        """Schedule `call(at_ns, argument)`."""
        self.events.schedule(at_ns, call, at_ns, argument)

    def run(self, duration_ns: int, progress: Callable[[float], None] | None = None) -> None:
        """Settle, run the load for `duration_ns`, and wait until all requests have ended or are late."""
        self._run(self.begin_ns)
        self._start_load()
        for done_ns in range(0, duration_ns, PROGRESS_NS):
            self._run(self.begin_ns + min(done_ns + PROGRESS_NS, duration_ns))
            if progress:
                progress(min(1.0, (done_ns + PROGRESS_NS) / duration_ns))
        self._stop_load()
        self._run(self.begin_ns + duration_ns + self.setting.client_ns)  # what was sent last arrives
        self._open_loop.next_ns = NEVER_NS
        longest_ns = max([request.slo_ns or BEST_EFFORT_NS for request in self.open.values()], default=0)
        self._run(self.now_ns + max(PATIENCE_NS, longest_ns + self.setting.grace_ns))

    def _start_load(self) -> None:
        self._open_loop.start(self.begin_ns + self.setting.client_ns)

    def _stop_load(self) -> None:
        """End what sends requests after answers. Part of subclasses."""

    def check(self) -> None:
        """Check the invariants of controller, ledger and devices."""
        self.controller.check()
        self.ledger.check()
        for device in self.devices.values():
            device.check()

    def _run(self, until_ns: int) -> None:
        events, host, open_loop = self.events, self._host, self._open_loop
        while True:
            event_ns = events.next_ns() or NEVER_NS
            at_ns = min(event_ns, open_loop.next_ns, self._wake_ns)
            if at_ns > until_ns:
                self.now_ns = until_ns
                return
            now_ns = self.now_ns = max(at_ns, self._free_ns)
            if event_ns <= now_ns:
                events.run_until(now_ns)
            if open_loop.next_ns <= now_ns:
                for sent_ns, model, slo_ns, group, traits in open_loop.pop_arrived(now_ns):
                    self.submit(sent_ns, model, slo_ns, group, traits)
            if self._wake_ns <= now_ns or host.has_messages():
                self._run_turn()

    def _run_turn(self) -> None:
        self._host.run_turn()
        self._free_ns = self.now_ns + self.setting.turn_ns
        self._wake_ns = max(self._host.wakeup_ns(), self._free_ns)

    def _to_client(self, message: Any, buffers: Sequence[Buffer]) -> None:
        if type(message) is Outcome:
            self._on_outcome(self.now_ns, message)

    def _to_device(self, device: DirectDevice, message: Any, buffers: Sequence[Buffer]) -> None:
        kind = type(message)
        if kind is Infer:
            device.begin_infer(self.now_ns, message)
        elif kind is Load:
            device.begin_load(self.now_ns, message)
        elif kind is Unload:
            self._loaded[message.model] -= device.unload(message.model)

    def _enqueue(self, sender: str, message: Any) -> None:
        self._host.enqueue(((self.controller.address, sender, message, ()),))

    def _connect(self, number: int, incarnation: int = 1) -> None:
        """Connect an incarnation of a device. It holds no models."""
        address, seed = device_address(number, incarnation), [self.seed, 2, number, incarnation - 1]
        device = self.devices[address] = DirectDevice(self, address, self._entries[number], seed)
        self._host.attached[address] = partial(self._to_device, device)
        self._enqueue(address, PeerConnected(address, HOST))
        share = Share(0, "emulated", device.pages.total)
        self._enqueue(address, Register((share,), device.reports()))

    def submit(self, sent_ns: int, model: int, slo_ns: int, group: int, traits: DynamicRequest) -> int:
        """Submit a request that was sent at `sent_ns` after the start of the load. Return its id."""
        key = self._keys[model]
        self._last_id = number = self._last_id + 1
        self.open[number] = Open(sent_ns, slo_ns, group)
        self.ledger.sent(sent_ns, group, model, not self._loaded[key])
        budget_ns = (slo_ns or BEST_EFFORT_NS) - (self.now_ns - self.begin_ns - sent_ns)
        solo_ns, application, length, rows = traits
        if solo_ns:
            self.solo_ns[number] = solo_ns
        budget_ns = max(1, budget_ns)
        self._enqueue(CLIENT, Submit(number, key, budget_ns, rows, CLIENT, number, not slo_ns, 0, length, application))
        return number

    def _on_outcome(self, now_ns: int, outcome: Outcome) -> None:
        if (request := self.open.pop(outcome.id, None)) is None:
            return
        self.ledger.refused(request.sent_ns, request.group)
        self.on_request_end(outcome.id, request, now_ns, False)

    def on_result(self, now_ns: int, ended: Ended) -> None:
        """Handle a Result that arrives at the controller, and count the outputs of an INFER."""
        device, action, result = ended
        if device.address not in self.devices:
            return
        if result.status == Status.OK:
            self._count(device, action, result)
        self._enqueue(device.address, result)
        (device.exec if isinstance(action, Infer) else device.load).advance(now_ns)

    def _count(self, device: DirectDevice, action: Infer | Load, result: Result) -> None:
        share = self.controller.cluster.workers[device.address].shares[0]
        pending = (share.exec if isinstance(action, Infer) else share.load).pending[action.action_id]
        self.on_action_end(device, action, result, pending.promised_ns)
        if isinstance(action, Load):
            self._loaded[action.model] += 1
            device.loaded[action.model] = True
            return
        answered_ns = result.end_ns - self.begin_ns + self.setting.answer_ns
        for row in action.rows:
            if (request := self.open.pop(row.submit_id, None)) is None:
                continue
            took_ns = answered_ns - request.sent_ns
            self.ledger.answered(request.sent_ns, request.group, took_ns, request.slo_ns, self.setting.grace_ns)
            self.on_request_end(row.submit_id, request, result.end_ns, True)

    def on_action_end(self, device: DirectDevice, action: Infer | Load, result: Result, promised_ns: int) -> None:
        """Part of subclasses: an action has ended OK. `promised_ns`: its end as predicted when it was sent."""

    def on_request_end(self, number: int, request: Open, end_ns: int, served: bool) -> None:
        """Part of subclasses: a request was answered or refused at `end_ns`."""


def device_address(number: int, incarnation: int) -> str:
    """Return the address of the device `worker/NUMBER`."""
    return f"worker/{number}#{incarnation:08}"
