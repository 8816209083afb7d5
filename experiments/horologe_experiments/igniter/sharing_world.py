"""A controller's world with shares of devices, the real tuner core, and a scaler in virtual time.

Workers own shares. They start when the tuner wants them, and their times depend on the shares beside them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from zlib import crc32

import msgspec

from horologe_common.clock import ms, s
from horologe_common.core.protocol import Core, PeerConnected
from horologe_common.interference.colocation import SharedDevice
from horologe_common.wire import DeviceInfo, Drain, Register, Share, Tune
from horologe_experiments.harness.experiment_world import ExperimentWorld, WorldRecords
from horologe_experiments.igniter.shared_models import co_located, share_model
from horologe_planning.plan import encode_plans
from horologe_sim.controller_only.controller_world import HOST
from horologe_sim.controller_only.direct_device import DeviceEntry, DirectDevice
from horologe_tuner.core.journal import JournalEntry
from horologe_tuner.core.worker_scaling import Scaled, ScaleTo

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.wanted_shares import WantedShare
    from horologe_experiments.harness.experiment_world import Watch
    from horologe_experiments.harness.interval_ledger import IntervalLedger
    from horologe_experiments.igniter.shared_models import EmulatedHardware
    from horologe_planning.plan import Placement, Plan
    from horologe_sim.controller_only.controller_world import ClusterSettings
    from horologe_sim.controller_only.request_load import Chunk
    from horologe_sim.engine.simulated_device import SimModel

TUNER, FRONTEND = "tuner/0#00000001", "frontend/0#00000001"
SCALER_NS = ms(10)
"""Time until the scaler answers."""
DRAIN_NS = s(1)
"""Time from the drain of a worker to its end: longer than any action."""


class TunerCore(Core, Protocol):
    """A core that carries out plans of shares."""

    scaler: str
    """Address of the scaler."""

    def check(self) -> None:
        """Assert the core's invariants."""


class RunningShare(NamedTuple):
    """A connected worker of a share."""

    wanted: WantedShare
    address: str


class SharingWorld(ExperimentWorld):
    """A run of plans on shares of devices. Requests name a workload by the index of its plan.

    `tuner`: the tuner core, or another core that receives Events and sends Plans and ScaleTo. `start_ns`: time from
    the scaler's call until a new worker has registered.
    """

    def __init__(
        self, setting: ClusterSettings, plans: Sequence[Plan], hardware: EmulatedHardware, ledger: IntervalLedger,
        seed: int, tuner: TunerCore, chunks: Iterable[Chunk] = (), watch: Watch | None = None, start_ns: int = s(2),
    ) -> None:  # fmt: skip
        self.placements: dict[str, Placement] = {}
        """By model; of a split workload, the first."""
        for plan in plans:
            self.placements.setdefault(plan.placements[0].model, plan.placements[0])
        self.hardware = hardware
        self.start_ns = start_ns
        self.journal: list[JournalEntry] = []
        self.running: dict[str, RunningShare] = {}
        """By name of the worker."""
        self._slowness: dict[str, float] = {}
        """Factor on the times of a workload."""
        self._active: dict[str, bool] = {}
        """Workers that the plan in force names."""
        self._starting: dict[str, int] = {}
        """Workers that start, with the number of their incarnation."""
        self._gpus: dict[str, SharedDevice] = {}
        self._share_incarnations: dict[str, int] = {}
        setting = msgspec.structs.replace(setting, devices=0)
        nominal = [self._nominal(name) for name in self.placements]
        super().__init__(setting, nominal, ledger, seed, chunks, records=WorldRecords(watch))
        self.tuner = tuner
        self._host.attached[TUNER] = self._post_to_tuner
        self._enqueue(TUNER, PeerConnected(TUNER, HOST))
        self.tuner.handle(self.now_ns, self.controller.address, PeerConnected(self.controller.address), ())
        self.apply(plans)

    def apply(self, plans: Sequence[Plan]) -> None:
        """Have the tuner apply plans."""
        self._on_tuner_message(self.now_ns, (FRONTEND, Tune(1, "apply", encode_plans(plans))))

    def lose_worker(self, name: str, restart_ns: int | None = None) -> None:
        """Kill a worker. It comes back after `restart_ns`; None: only if it is not wanted and then wanted again."""
        share = self._disconnect_share(name)
        if restart_ns is not None:
            self._start_share(share.wanted, restart_ns)

    def check(self) -> None:
        """Check the invariants of all cores, and that every running worker has one share."""
        super().check()
        self.tuner.check()
        assert {share.address for share in self.running.values()} == self.devices.keys()

    def _nominal(self, workload: str) -> SimModel:
        """Return the model of a workload, for its name and sizes."""
        placement = self.placements[workload]
        times = co_located(placement, placement.percent, SharedDevice(), self.hardware)
        return share_model(workload, times, placement.max_batch)

    def _post_to_tuner(self, message: Any, buffers: Sequence[Buffer]) -> None:
        self.schedule(self.now_ns + self.setting.worker_ns, self._on_tuner_message, (self.controller.address, message))

    def _on_tuner_message(self, now_ns: int, sent: tuple[str, Any]) -> None:
        self.tuner.handle(now_ns, *sent, ())
        self._run_tuner(now_ns)

    def _run_tuner(self, now_ns: int, *_: object) -> None:
        """Tick the tuner and carry out its messages."""
        self.tuner.tick(now_ns)
        outs, self.tuner.out = self.tuner.out, []
        for out in outs:
            if out.to == self.controller.address:
                self._enqueue(TUNER, out.message)
                self._active = {name: True for model in out.message.models for name in model.workers}
                self._update_slowness()
            elif isinstance(out.message, ScaleTo):
                self._scale(now_ns, out.message)
            elif isinstance(out.message, JournalEntry):
                self.journal.append(out.message)
        if (wake_ns := self.tuner.wakeup_ns()) is not None:
            self.schedule(max(wake_ns, now_ns + 1), self._run_tuner, None)

    def _scale(self, now_ns: int, message: ScaleTo) -> None:
        """Start and drain workers, and answer."""
        wanted = {share.worker: share for share in message.shares or ()}
        for name, share in wanted.items():
            if name not in self.running and name not in self._starting:
                self._start_share(share, self.start_ns)
        for name in [name for name in self._starting if name not in wanted]:
            del self._starting[name]
        for name in [name for name in self.running if name not in wanted]:
            self._enqueue(self.running[name].address, Drain())
            self.schedule(now_ns + DRAIN_NS, self._end_drained, self.running[name].address)
        answer = Scaled(message.workers, "", tuple(wanted))
        self.schedule(now_ns + SCALER_NS, self._on_tuner_message, (self.tuner.scaler, answer))

    def _start_share(self, wanted: WantedShare, start_ns: int) -> None:
        incarnation = self._share_incarnations[wanted.worker] = self._share_incarnations.get(wanted.worker, 0) + 1
        self._starting[wanted.worker] = incarnation
        self.schedule(self.now_ns + start_ns, self._connect_share, (wanted, incarnation))

    def _connect_share(self, now_ns: int, started: tuple[WantedShare, int]) -> None:
        """Register a worker with the model of its share, unless it is not wanted any more."""
        wanted, incarnation = started
        if self._starting.get(wanted.worker) != incarnation:
            return
        del self._starting[wanted.worker]
        address = f"worker/{wanted.worker}#{incarnation:08}"
        gpu = self._gpus.setdefault(wanted.device_id, SharedDevice())
        placement = self.placements[wanted.models[0]]
        times = co_located(placement, wanted.percent, gpu, self.hardware)
        model = share_model(placement.model, times, placement.max_batch)
        seed = [self.seed, 2, crc32(address.encode())]
        device = self.devices[address] = DirectDevice(self, address, DeviceEntry([model]), seed)
        self.running[wanted.worker] = RunningShare(wanted, address)
        self._host.attached[address] = partial(self._to_device, device)
        self._enqueue(address, PeerConnected(address, HOST))
        share = Share(0, "emulated", self.setting.pages, hardware=wanted.hardware, percent=wanted.percent)
        self._update_slowness()
        info = DeviceInfo(wanted.device_id, wanted.hardware)
        self._enqueue(address, Register((share,), device.reports(), device_info=info))

    def _end_drained(self, now_ns: int, address: str) -> None:
        for name in [name for name, share in self.running.items() if share.address == address]:
            self._disconnect_share(name)

    def _disconnect_share(self, name: str) -> RunningShare:
        share = self.running.pop(name)
        self.disconnect_device(share.address)
        return share

    def set_slowness(self, workload: str, factor: float) -> None:
        """Multiply the times of a workload from now on, on all its shares: an error of the prediction."""
        self._slowness[workload] = factor
        self._update_slowness()

    def _update_slowness(self) -> None:
        """Slow all shares of a device down in proportion if its active shares exceed 100%."""
        totals: dict[str, float] = {}
        for name, share in self.running.items():
            if name in self._active:
                totals[share.wanted.device_id] = totals.get(share.wanted.device_id, 0.0) + share.wanted.percent
        for share in self.running.values():
            oversubscribed = max(1.0, totals.get(share.wanted.device_id, 0.0) / 100)
            self.devices[share.address].factor = oversubscribed * self._slowness.get(share.wanted.models[0], 1.0)
