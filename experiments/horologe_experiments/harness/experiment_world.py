"""The controller alone with what experiments add: closed loops, faults of devices, and records of actions and costs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from horologe_common.clock import us
from horologe_common.core.hosting import CoreHost, NoTransport, raise_fault
from horologe_common.core.protocol import PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import Infer
from horologe_sim.controller_only.controller_world import ClusterSettings, ControllerWorld, device_address
from horologe_sim.controller_only.request_load import STATIC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from horologe_common.core.hosting import CoreObserver
    from horologe_common.core.protocol import Buffer, Core, Out
    from horologe_common.wire import Load, Result
    from horologe_experiments.harness.interval_ledger import IntervalLedger
    from horologe_sim.controller_only.direct_device import DeviceEntry, DirectDevice, Ended
    from horologe_sim.controller_only.request_load import Chunk, Open
    from horologe_sim.engine.simulated_device import SimModel

    Watch = Callable[[DirectDevice, Any, Result, int], None]

BEST_EFFORT = 0


class Loop(NamedTuple):
    """A closed-loop client: sends a request after each answer, or `resend_ns` after a refusal."""

    model: int
    slo_ns: int
    group: int = 0
    resend_ns: int = 0


class ChargedCluster(ClusterSettings, frozen=True, forbid_unknown_fields=True):
    """A cluster whose controller may need time to compute."""

    charge_decisions: bool = False
    """Lengthen each turn by the processor time that the controller took for it on this machine. The results then differ
    from run to run."""


class WorldRecords(NamedTuple):
    """What is recorded of a run."""

    watch: Watch | None = None
    """Gets the device, message, Result and predicted end of every finished action."""
    observer: CoreObserver | None = None
    clock: Callable[[], int] | None = None
    """Measures the time spent in the controller's core."""


NO_RECORDS = WorldRecords()


class ExperimentWorld(ControllerWorld):
    """A run with closed loops and records. It can have faults (`FaultyWorld`)."""

    ledger: IntervalLedger

    def __init__(
        self,
        setting: ClusterSettings,
        models: Sequence[SimModel],
        ledger: IntervalLedger,
        seed: int,
        chunks: Iterable[Chunk] = (),
        loops: Sequence[Loop] = (),
        devices: Sequence[DeviceEntry] = (),
        records: WorldRecords = NO_RECORDS,
    ) -> None:
        self._loops = loops
        self._loop_of: dict[int, int] = {}
        """Index of the closed loop of each open request that has one."""
        self._records = records
        self._charges = isinstance(setting, ChargedCluster) and setting.charge_decisions
        self._timed: TimedCore | None = None
        self._incarnations: dict[int, int] = {}
        """Incarnations of devices that were connected again."""
        super().__init__(setting, models, ledger, seed, chunks, devices)

    @property
    def controller_ns(self) -> int:
        """Time of `clock` spent in the controller's core."""
        return self._timed.spent_ns if self._timed else 0

    def _make_host(self) -> CoreHost:
        clock = self._records.clock or (time.thread_time_ns if self._charges else None)
        if clock:
            self._timed = TimedCore(self.controller, clock)
        host = CoreHost([self._timed or self.controller], lambda: self.now_ns, NoTransport(), raise_fault)
        host.observer = self._records.observer
        return host

    def _run_turn(self) -> None:
        spent_ns = self.controller_ns
        super()._run_turn()
        if self._charges:
            self._free_ns += self.controller_ns - spent_ns
            self._wake_ns = max(self._wake_ns, self._free_ns)

    def _start_load(self) -> None:
        super()._start_load()
        for number in range(len(self._loops)):
            self.schedule(self.begin_ns + number * us(10), self._submit_next, number)

    def _stop_load(self) -> None:
        self._loops = ()

    def _submit_next(self, now_ns: int, number: int) -> None:
        """Submit the next request of a closed loop."""
        if not self._loops:
            return
        loop, sent_ns = self._loops[number], max(0, now_ns - self.begin_ns - self.setting.client_ns)
        request_id = self.submit(sent_ns, loop.model, loop.slo_ns, loop.group, STATIC)
        self._loop_of[request_id] = number
        if loop.slo_ns:
            timeout_ns = self.begin_ns + sent_ns + loop.slo_ns + self.setting.grace_ns + 1
            self.schedule(timeout_ns, self._on_timeout, request_id)

    def _on_timeout(self, now_ns: int, request_id: int) -> None:
        """End a request of a closed loop at SLO and grace, and send its next. The first is still executed."""
        if (request := self.open.pop(request_id, None)) is None:
            return
        took_ns = now_ns - self.begin_ns - request.sent_ns
        self.ledger.answered(request.sent_ns, request.group, took_ns, request.slo_ns, self.setting.grace_ns)
        self.schedule(now_ns + self.setting.client_ns, self._submit_next, self._loop_of.pop(request_id))

    def on_request_end(self, number: int, request: Open, end_ns: int, served: bool) -> None:
        """Submit the next request of a closed loop, after an answer or a refusal at `end_ns`."""
        loop, setting = self._loop_of.pop(number, None), self.setting
        if loop is not None and self._loops:
            back_ns = setting.answer_ns if served else setting.client_ns + self._loops[loop].resend_ns
            self.schedule(end_ns + setting.client_ns + back_ns, self._submit_next, loop)

    def on_result(self, now_ns: int, ended: Ended) -> None:
        """Handle a Result that arrives at the controller, and count one of an action that was too late."""
        device, _, result = ended
        if result.status == Status.TOO_LATE and device.address in self.devices:
            self.ledger.too_late += 1
        super().on_result(now_ns, ended)

    def on_action_end(self, device: DirectDevice, action: Infer | Load, result: Result, promised_ns: int) -> None:
        """Record an action that has ended OK."""
        if self._records.watch:
            self._records.watch(device, action, result, promised_ns)
        end_ns, took_ns = result.end_ns - self.begin_ns, result.device_ns
        if isinstance(action, Infer):
            self.ledger.ran(end_ns, len(action.rows), took_ns, action.expected_ns, promised_ns - self.begin_ns)
        elif end_ns >= 0:
            self.ledger.loaded(end_ns, took_ns, action.expected_ns)

    def kill(self, name: str, *, void: bool = False) -> None:
        """Lose the device `worker/NUMBER`, with what it holds and the actions on it."""
        self.disconnect_device(self._find_device(name).address)

    def disconnect_device(self, address: str) -> None:
        """Lose a device, with the actions on it."""
        device = self.devices.pop(address)
        del self._host.attached[address]
        for model, known in device.loaded.items():
            self._loaded[model] -= known
        self._enqueue(address, PeerDisconnected(address))

    def start(self, name: str) -> None:
        """Connect a device that was lost. It holds no models."""
        number = _device_number(name)
        incarnation = self._incarnations[number] = self._incarnations.get(number, 1) + 1
        self._connect(number, incarnation)

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
        number = _device_number(name)
        return self.devices[device_address(number, self._incarnations.get(number, 1))]


def _device_number(name: str) -> int:
    return int(name.removeprefix("worker/"))


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
