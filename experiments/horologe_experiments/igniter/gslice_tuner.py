"""GSLICE+ as a tuner: each workload adjusts its own share and batch size by its measurements (iGniter section 5.3).

A new share needs a new process, which takes about 10 s to start. No adjustment considers the other workloads of the
GPU, so the shares may exceed 100%.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from horologe_common.clock import s
from horologe_common.core.protocol import Out
from horologe_common.wanted_shares import WantedShare
from horologe_common.wire import Events, Infer, PlannedModel, ResourcePlan, Tune
from horologe_experiments.igniter.provisioning_baselines import (
    GSLICE_ADJUSTMENTS,
    GSLICE_SHARE,
    adjust_batches,
    adjust_shares,
)
from horologe_experiments.igniter.sharing_world import TUNER
from horologe_planning.plan import parse_plans
from horologe_planning.provisioning.device_shares import PlacedShare
from horologe_tuner.core.standby.share_workers import resized, worker_name
from horologe_tuner.core.worker_scaling import ScaleTo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.wire import DeviceState, Result
    from horologe_planning.provisioning.workloads import GpuType
    from horologe_sim.controller_only.direct_device import DirectDevice

MEASURE_NS = s(2)
"""Time after an adjustment from which the next one is computed. With the start of a process, 12 s or more."""


class Slice:
    """A workload: its share and batch size, and the measurements since the last adjustment."""

    def __init__(self, planned: PlacedShare) -> None:
        self.planned = planned
        self.percent = GSLICE_SHARE
        self.next_percent: float | None = None
        """Size of the share that is being started."""
        self.batch = 1
        self.adjusted = 0
        """Adjustments of the batch size since the last one of the share."""
        self.reset(0)

    def reset(self, now_ns: int) -> None:
        """Start to measure."""
        self.since_ns = now_ns
        self.batches = self.rows = self.busy_ns = 0

    def wanted(self) -> list[WantedShare]:
        """Return the shares that must have a worker."""
        shares = [self._wanted(self.percent)]
        if self.next_percent is not None:
            shares.append(self._wanted(self.next_percent, self.worker))
        return shares

    @property
    def worker(self) -> str:
        """Name of the worker that serves."""
        return worker_name(resized(self.planned.placement, self.percent))

    @property
    def next_worker(self) -> str:
        """Name of the worker that is being started, empty without."""
        return "" if self.next_percent is None else worker_name(resized(self.planned.placement, self.next_percent))

    def _wanted(self, percent: float, standby_for: str = "") -> WantedShare:
        placed = self.planned.placement
        worker = worker_name(resized(placed, percent))
        return WantedShare(
            worker, placed.device, placed.hardware, percent, models=(placed.model,), standby_for=standby_for
        )


class GsliceTuner:
    """Core in place of the tuner's, with `GSLICE_SHARE` and batch 1 first. `log`: (time, workload, percent, batch)."""

    address, scaler = TUNER, "scaler/0"

    def __init__(self, kind: GpuType) -> None:
        self.out: list[Out] = []
        self.log: list[tuple[int, str, float, int]] = []
        self._kind = kind
        self._slices: dict[str, Slice] = {}
        self._controller = ""
        self._number = 0

    def handle(self, now_ns: int, sender: str, message: Any, buffers: Sequence[Buffer]) -> None:
        """Apply plans on one GPU, or follow the events."""
        if isinstance(message, Tune):
            self._apply(now_ns, message.document)
        elif isinstance(message, Events):
            if message.devices is not None:
                self._activate(now_ns, message.devices)
            self._adjust(now_ns)
        elif sender.startswith("controller"):
            self._controller = sender
            self.out.append(Out(sender, ResourcePlan(0)))

    def tick(self, now_ns: int) -> None:
        """Do nothing: events come every 100 ms."""

    def wakeup_ns(self) -> int | None:
        return None

    def check(self) -> None:
        """Do nothing."""

    def record_batch(self, device: DirectDevice, action: Any, result: Result, promised_ns: int) -> None:
        """Measure a finished INFER. Pass it as `watch` of the world."""
        one = self._slices.get(action.model.partition("/")[0])
        if one is not None and isinstance(action, Infer) and result.begin_ns >= one.since_ns:
            one.batches += 1
            one.rows += len(action.rows)
            one.busy_ns += result.device_ns

    def _apply(self, now_ns: int, document: bytes) -> None:
        for plan in parse_plans(document):
            (placement,) = plan.placements
            self._slices[plan.name] = Slice(PlacedShare(plan, placement))
            self.log.append((now_ns, plan.name, GSLICE_SHARE, 1))
        self._send()

    def _activate(self, now_ns: int, devices: Sequence[DeviceState]) -> None:
        """Serve by the new shares whose workers have registered."""
        running = {device.worker.partition("/")[2].partition("#")[0] for device in devices}
        started = [one for one in self._slices.values() if one.next_worker in running]
        for one in started:
            assert one.next_percent is not None
            one.percent, one.next_percent = one.next_percent, None
            one.reset(now_ns)
            self.log.append((now_ns, one.planned.workload, one.percent, one.batch))
        if started:
            self._send()

    def _adjust(self, now_ns: int) -> None:
        """Adjust batch sizes at once, and then the shares, for which a worker has to start."""
        changed = False
        for one in self._slices.values():
            if one.next_percent is not None or not one.batches or now_ns < one.since_ns + MEASURE_NS:
                continue
            latency_ms = np.array([one.busy_ns / one.batches / 1e6])
            throughput = np.array([1e9 * one.rows / one.busy_ns])
            batch = int(adjust_batches([one.planned], np.array([float(one.batch)]), latency_ms)[0])
            one.reset(now_ns)
            if batch != one.batch and one.adjusted < GSLICE_ADJUSTMENTS:
                one.batch, one.adjusted, changed = batch, one.adjusted + 1, True
                self.log.append((now_ns, one.planned.workload, one.percent, one.batch))
                continue
            share = np.array([one.percent])
            percent = round(float(adjust_shares(self._kind, [one.planned], share, latency_ms, throughput)[0]), 1)
            one.adjusted = 0
            if percent != one.percent:
                one.next_percent, changed = percent, True
        if changed:
            self._send()

    def _send(self) -> None:
        self._number += 1
        models = tuple(
            PlannedModel(
                one.planned.placement.model, 1, one.batch, one.planned.placement.hardware, (one.worker,),
                standby=() if one.next_percent is None else (one.next_worker,),
            )
            for one in self._slices.values()
        )  # fmt: skip
        self.out.append(Out(self._controller, ResourcePlan(self._number, models)))
        wanted = tuple(share for one in self._slices.values() for share in one.wanted())
        self.out.append(Out(self.scaler, ScaleTo({}, wanted)))
