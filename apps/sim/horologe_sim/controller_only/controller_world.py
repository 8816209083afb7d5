"""A world of the controller alone: the real core in a `CoreHost`, with devices and clients that it calls directly.

Devices, windows and turns are those of a simulated cluster (`engine/world.py`). There are no other processes, packets
and tensors, and an action is one event, so that an hour at thousands of requests per second takes minutes.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from horologe_common.clock import NEVER_NS, s, us
from horologe_common.core.hosting import CoreHost, NoTransport, raise_fault
from horologe_common.core.protocol import PeerConnected, PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import Infer, Load, Outcome, Register, Result, Share, Submit, Unload
from horologe_controller.core.controller import Controller
from horologe_controller.settings import ControllerSettings
from horologe_sim.controller_only.direct_device import DeviceEntry, DirectDevice
from horologe_sim.controller_only.request_load import STATIC, Open, OpenLoop
from horologe_sim.engine.event_queue import EventQueue
from horologe_sim.engine.noise import NOISES, Noise
from horologe_sim.scenario.clockwork_models import PAGES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from horologe_common.core.hosting import CoreObserver
    from horologe_common.core.protocol import Buffer, Core, Out
    from horologe_sim.controller_only.direct_device import Ended
    from horologe_sim.controller_only.request_load import Chunk, DynamicRequest, Loop
    from horologe_sim.engine.ledger import Ledger
    from horologe_sim.engine.simulated_device import SimModel

    Watch = Callable[[DirectDevice, Any, Result, int], None]

HOST = "host"
CLIENT = "selector/load#00000001"
START_NS = s(1000)
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
    charge_decisions: bool = False
    """Lengthen each turn by the processor time that the controller took for it on this machine. The results then differ
    from run to run."""
    controller: ControllerSettings = ControllerSettings()

    @property
    def answer_ns(self) -> int:
        """Delay from a worker to the client."""
        return self.worker_ns + self.client_ns


class WorldOptions(NamedTuple):
    """What most runs do without."""

    devices: Sequence[DeviceEntry] = ()
    """Empty: as many as in the settings, each with all models."""
    neighbours: Sequence[Core] = ()
    """Further cores in the controller's process."""
    watch: Watch | None = None
    """Gets the device, message, Result and predicted end of every finished action."""
    observer: CoreObserver | None = None
    clock: Callable[[], int] | None = None
    """Measures the time spent in the controller's core."""


NO_OPTIONS = WorldOptions()


class ControllerWorld:
    """A run. Requests name a model by its index in `models`."""

    def __init__(
        self,
        setting: ClusterSettings,
        models: Sequence[SimModel],
        ledger: Ledger,
        seed: int,
        chunks: Iterable[Chunk] = (),
        loops: Sequence[Loop] = (),
        options: WorldOptions = NO_OPTIONS,
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
        self._loops = loops
        self._watch = options.watch
        self._last_id = 0
        self._free_ns = self._wake_ns = START_NS
        self._loaded = dict.fromkeys(self._keys, 0)
        self._entries = options.devices or [DeviceEntry(models)] * setting.devices
        self._incarnations = [0] * len(self._entries)
        clock = time.thread_time_ns if setting.charge_decisions and options.clock is None else options.clock
        self._core: Core = TimedCore(self.controller, clock) if clock else self.controller
        self._host = CoreHost([*options.neighbours, self._core], lambda: self.now_ns, NoTransport(), raise_fault)
        self._host.observer = options.observer
        self._host.introduce_cores(HOST)
        self._host.attached[CLIENT] = self._to_client
        self._enqueue(CLIENT, PeerConnected(CLIENT, HOST))
        for number, entry in enumerate(self._entries):
            self._connect(number, entry.resident)
        self._run_turn()

    @property
    def controller_ns(self) -> int:
        """Time of `clock` spent in the controller's core."""
        return self._core.spent_ns if isinstance(self._core, TimedCore) else 0

    def schedule(self, at_ns: int, call: Callable[[int, Any], None], argument: Any) -> None:
        """Schedule `call(at_ns, argument)`."""
        self.events.schedule(at_ns, call, at_ns, argument)

    def run(self, duration_ns: int, progress: Callable[[float], None] | None = None) -> None:
        """Settle, run the load for `duration_ns`, and wait until all requests have ended or are late."""
        self._run(self.begin_ns)
        self._open_loop.start(self.begin_ns + self.setting.client_ns)
        for number, loop in enumerate(self._loops):
            self.schedule(self.begin_ns + number * us(10), self._submit_next, (number, loop))
        for done_ns in range(0, duration_ns, PROGRESS_NS):
            self._run(self.begin_ns + min(done_ns + PROGRESS_NS, duration_ns))
            if progress:
                progress(min(1.0, (done_ns + PROGRESS_NS) / duration_ns))
        self._loops = ()
        self._run(self.begin_ns + duration_ns + self.setting.client_ns)  # what was sent last arrives
        self._open_loop.next_ns = NEVER_NS
        longest_ns = max([request.slo_ns or BEST_EFFORT_NS for request in self.open.values()], default=0)
        self._run(self.now_ns + max(PATIENCE_NS, longest_ns + self.setting.grace_ns))

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
                    self.submit(sent_ns, model, slo_ns, group, -1, traits)
            if self._wake_ns <= now_ns or host.has_messages():
                self._run_turn()

    def _run_turn(self) -> None:
        host, setting = self._host, self.setting
        spent_ns = self.controller_ns if setting.charge_decisions else 0
        host.run_turn()
        self._free_ns = self.now_ns + setting.turn_ns
        if setting.charge_decisions:
            self._free_ns += self.controller_ns - spent_ns
        self._wake_ns = max(host.wakeup_ns(), self._free_ns)

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
            self.ledger.unloads += 1
            self._loaded[message.model] -= device.unload(message.model)

    def _enqueue(self, sender: str, message: Any) -> None:
        self.post(self.controller.address, sender, message)

    def attach(self, address: str, deliver: Callable[[Any, Sequence[Buffer]], None]) -> None:
        """Have the messages for an address delivered to a function."""
        self._host.attached[address] = deliver

    def post(self, to: str, sender: str, message: Any) -> None:
        """Put a message into the mailbox of a core."""
        self._host.enqueue(((to, sender, message, ()),))

    def kill(self, name: str, *, void: bool = False) -> None:
        """Lose the device `worker/NUMBER`, with what it holds and the actions on it."""
        self.disconnect_device(self._find_device(name).address)

    def start(self, name: str) -> None:
        """Connect a device that was lost. It holds no models."""
        self._connect(int(name.removeprefix("worker/")))

    def slow(self, name: str, factor: float) -> None:
        """Multiply the execution times of a device by `factor` from now on."""
        device = self._find_device(name)
        device.factor = device.nominal_factor * factor

    def stall(self, name: str, for_ns: int) -> None:
        """Raise ValueError: no process but the controller's is simulated."""
        raise ValueError(f"faults: got a stall of {name}, wanted kill or slow of a worker")

    def cut(self, name: str, for_ns: int) -> None:
        """Raise ValueError: there are no connections."""
        raise ValueError(f"faults: got a cut of {name}, wanted kill or slow of a worker")

    def _find_device(self, name: str) -> DirectDevice:
        number = int(name.removeprefix("worker/"))
        return self.devices[_device_address(number, self._incarnations[number])]

    def disconnect_device(self, address: str) -> None:
        """Lose a device, with the actions on it."""
        device = self.devices.pop(address)
        del self._host.attached[address]
        for model, known in device.loaded.items():
            self._loaded[model] -= known
        self._enqueue(address, PeerDisconnected(address))

    def _connect(self, number: int, resident: Sequence[str] = ()) -> None:
        """Connect a new incarnation of a device, with those of the `resident` models that fit in its pages."""
        self._incarnations[number] += 1
        incarnation, entry = self._incarnations[number], self._entries[number]
        address = _device_address(number, incarnation)
        device = self.devices[address] = DirectDevice(self, address, entry, [self.seed, 2, number, incarnation - 1])
        for model in device.hold(resident):
            self._loaded[model] += 1
        self._host.attached[address] = partial(self._to_device, device)
        self._enqueue(address, PeerConnected(address, HOST))
        share = Share(0, "emulated", device.pages.total, tuple(device.loaded))
        self._enqueue(address, Register((share,), device.reports()))

    def _submit_next(self, now_ns: int, numbered: tuple[int, Loop]) -> None:
        """Submit the next request of a closed loop."""
        number, loop = numbered
        if self._loops:
            sent_ns = max(0, now_ns - self.begin_ns - self.setting.client_ns)
            self.submit(sent_ns, loop.model, loop.slo_ns, loop.group, number, STATIC)

    def submit(self, sent_ns: int, model: int, slo_ns: int, group: int, loop: int, traits: DynamicRequest) -> int:
        """Submit a request that was sent at `sent_ns` after the start of the load. Return its id."""
        key = self._keys[model]
        self._last_id = number = self._last_id + 1
        self.open[number] = Open(sent_ns, slo_ns, group, loop)
        self.ledger.sent(sent_ns, group, model, not self._loaded[key])
        if loop >= 0 and slo_ns:
            timeout_ns = self.begin_ns + sent_ns + slo_ns + self.setting.grace_ns + 1
            self.events.schedule(timeout_ns, self._on_timeout, timeout_ns, number)
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

    def _on_timeout(self, now_ns: int, number: int) -> None:
        """End a request of a closed loop at SLO and grace, and send its next. The first is still executed."""
        if (request := self.open.pop(number, None)) is None:
            return
        took_ns = now_ns - self.begin_ns - request.sent_ns
        self.ledger.answered(request.sent_ns, request.group, took_ns, request.slo_ns, self.setting.grace_ns)
        if self._loops:
            self.schedule(now_ns + self.setting.client_ns, self._submit_next, (request.loop, self._loops[request.loop]))

    def on_result(self, now_ns: int, ended: Ended) -> None:
        """Handle a Result that arrives at the controller, and count the outputs of an INFER."""
        device, action, result = ended
        if device.address not in self.devices:
            return
        if result.status == Status.OK:
            self._count(device, action, result)
        elif result.status == Status.TOO_LATE:
            self.ledger.too_late += 1
        self._enqueue(device.address, result)
        (device.exec if isinstance(action, Infer) else device.load).advance(now_ns)

    def _count(self, device: DirectDevice, action: Infer | Load, result: Result) -> None:
        end_ns, took_ns = result.end_ns - self.begin_ns, result.device_ns
        share = self.controller.cluster.workers[device.address].shares[0]
        pending = (share.exec if isinstance(action, Infer) else share.load).pending[action.action_id]
        if self._watch:
            self._watch(device, action, result, pending.promised_ns)
        if isinstance(action, Load):
            self._loaded[action.model] += 1
            device.loaded[action.model] = True
            if end_ns >= 0:
                self.ledger.loaded(end_ns, took_ns, action.expected_ns)
            return
        self.ledger.ran(end_ns, len(action.rows), took_ns, action.expected_ns, pending.promised_ns - self.begin_ns)
        for row in action.rows:
            if (request := self.open.pop(row.submit_id, None)) is None:
                continue
            took_ns = end_ns + self.setting.answer_ns - request.sent_ns
            self.ledger.answered(request.sent_ns, request.group, took_ns, request.slo_ns, self.setting.grace_ns)
            self.on_request_end(row.submit_id, request, result.end_ns, True)

    def on_request_end(self, number: int, request: Open, end_ns: int, served: bool) -> None:
        """Submit the next request of a closed loop, after an answer or a refusal at `end_ns`."""
        if request.loop >= 0 and self._loops:
            loop = self._loops[request.loop]
            setting = self.setting
            back_ns = setting.client_ns + (setting.answer_ns if served else setting.client_ns + loop.resend_ns)
            at_ns = end_ns + back_ns
            self.events.schedule(at_ns, self._submit_next, at_ns, (request.loop, loop))


class TimedCore:
    """A core that measures, with `clock`, the time spent in it."""

    def __init__(self, core: Core, clock: Callable[[], int]) -> None:
        self.address = core.address
        self.out: list[Out] = []
        self.spent_ns = 0
        self._core = core
        self._clock = clock

    def handle(self, now_ns: int, sender: str, message: Any, buffers: Sequence[Buffer]) -> None:
        """Pass the message on."""
        begin = self._clock()
        self._core.handle(now_ns, sender, message, buffers)
        self.spent_ns += self._clock() - begin

    def tick(self, now_ns: int) -> None:
        """Tick the core and take over what it sends."""
        begin = self._clock()
        self._core.tick(now_ns)
        self.spent_ns += self._clock() - begin
        self.out, self._core.out = self._core.out, []

    def wakeup_ns(self) -> int | None:
        """Return the core's wakeup time."""
        return self._core.wakeup_ns()


def _device_address(number: int, incarnation: int) -> str:
    return f"worker/{number}#{incarnation:08}"
