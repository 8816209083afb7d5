"""The fast world: the real controller in a `CoreHost`, with simplified workers and clients.

Turns, windows and the arrival of Results are those of engine/world.py. There are no packets and no tensors, and an
action is one event, so that an hour at thousands of requests per second takes minutes.
"""

from __future__ import annotations

import heapq
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from horologe_common.clock import NEVER_NS, s, us
from horologe_common.core.hosting import CoreHost, NoTransport, raise_fault
from horologe_common.core.protocol import PeerConnected, PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import Infer, Load, Outcome, Register, Result, Share, Submit, Unload
from horologe_controller.core.controller import Controller
from horologe_sim.engine.noise import Draws
from horologe_sim.fast.fast_worker import FastDevice
from horologe_sim.fast.timed_core import TimedCore
from horologe_sim.fast.traffic import STATIC, Open, OpenLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from horologe_common.core.hosting import CoreObserver
    from horologe_common.core.protocol import Buffer, Core
    from horologe_sim.engine.virtual_worker import SimModel
    from horologe_sim.fast.fast_worker import Ended, FastClusterSettings
    from horologe_sim.fast.ledger import Ledger
    from horologe_sim.fast.traffic import Chunk, DynamicRequest, Loop

    Watch = Callable[[FastDevice, Any, Result, int], None]

HOST = "host"
CLIENT = "selector/load#00000001"
START_NS = s(1000)
BEST_EFFORT_NS, PATIENCE_NS = s(30), s(2)
PROGRESS_NS = s(1)


def device_address(number: int, incarnation: int = 1) -> str:
    """Return the address of a device."""
    return f"worker/{number}#{incarnation:08}"


class FastWorld:
    """A run. `watch` gets the device, message, Result and predicted end of every finished action.

    Requests name a model by its index in `models`. Every device has all of them, or those of its entry in `installed`.
    `factors`: the execution times of each device as multiples of those of the models; empty: all 1. `pages`: those of
    each device; empty: as in `setting`. `resident`: keys of the models that each device holds when it connects for the
    first time. `neighbours`: further cores in the controller's process.
    """

    def __init__(
        self, setting: FastClusterSettings, models: Sequence[SimModel], ledger: Ledger, seed: int,
        chunks: Iterable[Chunk] = (), loops: Sequence[Loop] = (), *, clock: Callable[[], int] | None = None,
        watch: Watch | None = None, installed: Sequence[Sequence[SimModel]] = (), factors: Sequence[float] = (),
        pages: Sequence[int] = (), resident: Sequence[Sequence[str]] = (), neighbours: Sequence[Core] = (),
        observer: CoreObserver | None = None,
    ) -> None:  # fmt: skip
        self.setting = setting
        self._seed = seed
        self.ledger = ledger
        self.controller = Controller("controller/0#00000001", setting.controller, HOST)
        self.begin_ns = START_NS + setting.settle_ns
        self.open: dict[int, Open] = {}
        self.now_ns = START_NS
        self._keys = [model.report.spec.key for model in models]
        self._open_loop = OpenLoop(chunks)
        self._loops = loops
        self._watch = watch
        self._heap: list[tuple[int, int, Callable[[int, Any], None], Any]] = []
        self._events = self._last_id = 0
        self._free_ns = self._wake_ns = START_NS
        self._solo_ns: dict[int, int] = {}
        self._loaded = dict.fromkeys(self._keys, 0)
        self._installed = [
            {model.report.spec.key: model for model in on_device}
            for on_device in installed or [models] * setting.devices
        ]
        self._factors = factors or [1.0] * len(self._installed)
        self._pages = pages or [setting.pages] * len(self._installed)
        self.devices: dict[str, FastDevice] = {}
        """Connected devices by address. Those of the start have the incarnation 1."""
        if setting.charge_decisions:
            clock = clock or time.thread_time_ns
        self._core: Core = TimedCore(self.controller, clock) if clock else self.controller
        self._host = CoreHost([*neighbours, self._core], lambda: self.now_ns, NoTransport(), raise_fault)
        self._host.observer = observer
        self._host.introduce_cores(HOST)
        self._host.attached[CLIENT] = self._to_client
        self._enqueue(CLIENT, PeerConnected(CLIENT, HOST))
        for number in range(len(self._installed)):
            self.connect_device(number, resident=resident[number] if resident else ())
        self._run_turn()

    @property
    def controller_ns(self) -> int:
        """Time of `clock` spent in the controller's core."""
        return self._core.spent_ns if isinstance(self._core, TimedCore) else 0

    def schedule(self, at_ns: int, call: Callable[[int, Any], None], argument: Any) -> None:
        """Schedule `call(now_ns, argument)`."""
        self._events += 1
        heapq.heappush(self._heap, (at_ns, self._events, call, argument))

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
        heap, host, open_loop = self._heap, self._host, self._open_loop
        while True:
            at_ns = min(heap[0][0] if heap else NEVER_NS, open_loop.next_ns, self._wake_ns)
            if at_ns > until_ns:
                self.now_ns = until_ns
                return
            now_ns = self.now_ns = max(at_ns, self._free_ns)
            while heap and heap[0][0] <= now_ns:
                at_ns, _, call, argument = heapq.heappop(heap)
                call(at_ns, argument)
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

    def _to_device(self, device: FastDevice, message: Any, buffers: Sequence[Buffer]) -> None:
        kind = type(message)
        if kind is Infer:
            device.infer(self.now_ns, message)
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

    def connect_device(self, number: int, incarnation: int = 1, resident: Sequence[str] = ()) -> None:
        """Connect a device, with those of the `resident` models that fit in its pages."""
        address = device_address(number, incarnation)
        device = self.devices[address] = FastDevice(
            address,
            self._installed[number],
            self._pages[number],
            Draws(self.setting.noise, [self._seed, 2, number, incarnation - 1]),
            self.setting.worker_ns,
            self.schedule,
            self._on_result,
            self._solo_ns,
            self._factors[number],
        )
        for model in device.hold(resident):
            self._loaded[model] += 1
        self._host.attached[address] = partial(self._to_device, device)
        self._enqueue(address, PeerConnected(address, HOST))
        share = Share(0, "emulated", self._pages[number], tuple(device.loaded))
        self._enqueue(address, Register((share,), device.reports()))

    def disconnect_device(self, address: str) -> None:
        """Lose a device, with the actions on it."""
        device = self.devices.pop(address)
        del self._host.attached[address]
        for model, known in device.loaded.items():
            self._loaded[model] -= known
        self._enqueue(address, PeerDisconnected(address))

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
            self.schedule(self.begin_ns + sent_ns + slo_ns + self.setting.grace_ns + 1, self._on_timeout, number)
        budget_ns = (slo_ns or BEST_EFFORT_NS) - (self.now_ns - self.begin_ns - sent_ns)
        solo_ns, application, length, rows = traits
        if solo_ns:
            self._solo_ns[number] = solo_ns
        budget_ns = max(1, budget_ns)
        self._enqueue(CLIENT, Submit(number, key, budget_ns, rows, CLIENT, number, not slo_ns, 0, length, application))
        return number

    def _on_outcome(self, now_ns: int, outcome: Outcome) -> None:
        if (request := self.open.pop(outcome.id, None)) is None:
            return
        self.ledger.unserved(request.sent_ns, request.group)
        self.on_request_end(outcome.id, request, now_ns, False)

    def _on_timeout(self, now_ns: int, number: int) -> None:
        """End a request of a closed loop at SLO and grace, and send its next. The first is still executed."""
        if (request := self.open.pop(number, None)) is None:
            return
        took_ns = now_ns - self.begin_ns - request.sent_ns
        self.ledger.answered(request.sent_ns, request.group, took_ns, request.slo_ns, self.setting.grace_ns)
        if self._loops:
            self.schedule(now_ns + self.setting.client_ns, self._submit_next, (request.loop, self._loops[request.loop]))

    def _on_result(self, now_ns: int, ended: Ended) -> None:
        """Handle a Result that arrives at the controller, and count the outputs of an INFER."""
        device, action, result = ended
        if device.address not in self.devices:
            return
        run = device.exec if isinstance(action, Infer) else device.load
        if result.status == Status.OK:
            self._count(device, action, result)
        elif result.status == Status.TOO_LATE:
            self.ledger.too_late += 1
        self._enqueue(device.address, result)
        device.advance(now_ns, run)

    def _count(self, device: FastDevice, action: Infer | Load, result: Result) -> None:
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
            self.schedule(end_ns + back_ns, self._submit_next, (request.loop, loop))
