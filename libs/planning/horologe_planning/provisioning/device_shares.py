"""Shares of devices in plans: which workloads are neighbours, and plans from the shares of workloads.

Two plans with a placement on `v100-1` each are neighbours there:

    shares_by_device(plans)["v100-1"] == [PlacedShare(plan, share), PlacedShare(other_plan, other_share)]
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from horologe_common.clock import ms
from horologe_common.interference.prediction import INTERFERENCE_MODELS, predict_shares, stack_coefficients
from horologe_planning.plan import Placement, Plan
from horologe_planning.provisioning.workloads import Workload

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horologe_common.interference.prediction import Array, InterferenceModel
    from horologe_planning.provisioning.workloads import GpuType


NS_PER_MS = 1e6


class PlacedShare(NamedTuple):
    """A workload's share of a device."""

    plan: Plan
    placement: Placement

    @property
    def workload(self) -> str:
        """Name of the workload."""
        return self.plan.name

    @property
    def rate(self) -> float:
        """Requests per second of this share. A workload that exceeds one device has several."""
        return self.plan.rate * self.placement.scale_factor

    @property
    def latency_ms(self) -> float:
        """Predicted execution latency of a full batch beside the neighbours."""
        return self.placement.latency_ns / NS_PER_MS

    @property
    def slo_ms(self) -> float:
        """Deadline of a request."""
        return self.plan.slo_ns / NS_PER_MS

    @property
    def limit_ms(self) -> float:
        """Most that a batch may take: half of the SLO. The rest is for batching and queueing (iGniter Eq. 14)."""
        return self.slo_ms / 2

    @property
    def headroom(self) -> float:
        """Part of the permitted latency that the prediction leaves."""
        return 1 - self.latency_ms / self.limit_ms


def shares_by_device(plans: Iterable[Plan]) -> dict[str, list[PlacedShare]]:
    """Return the shares of each device, devices in the order of their numbers."""
    devices: dict[str, list[PlacedShare]] = {}
    for plan in plans:
        for placement in plan.shares:
            devices.setdefault(placement.device, []).append(PlacedShare(plan, placement))
    return dict(sorted(devices.items(), key=lambda item: _number_parts(item[0])))


def device_counts(plans: Iterable[Plan]) -> dict[str, int]:
    """Return the number of devices of each hardware type."""
    return dict(Counter(shares[0].placement.hardware for shares in shares_by_device(plans).values()))


def plan_workloads(parts: Iterable[tuple[Workload, Placement]]) -> tuple[Plan, ...]:
    """Return a plan for each workload, in the order of their first parts. A part's rate is that of its share."""
    placed: dict[str, list[tuple[Workload, Placement]]] = {}
    for part, placement in parts:
        placed.setdefault(part.name, []).append((part, placement))
    plans = []
    for name, own in placed.items():
        rate = sum(part.rate for part, _ in own)
        placements = tuple(msgspec.structs.replace(share, scale_factor=part.rate / rate) for part, share in own)
        plans.append(Plan(name, own[0][0].slo_ns, rate, placements))
    return tuple(plans)


def with_shares(plans: Iterable[Plan], shares: Iterable[PlacedShare]) -> tuple[Plan, ...]:
    """Return the plans with the placements of these shares in place of those with the same workload and device."""
    changed = {(share.workload, share.placement.device): share.placement for share in shares}
    return tuple(
        msgspec.structs.replace(plan, placements=tuple(changed.get((plan.name, p.device), p) for p in plan.placements))
        for plan in plans
    )


def placed_workloads(shares: Iterable[PlacedShare]) -> list[Workload]:
    """Return the workload of each share, with the planned batch size as the only one."""
    return [
        Workload(share.workload, share.placement.coefficients, share.rate, share.slo_ms, (share.placement.max_batch,))
        for share in shares
    ]


def _number_parts(device: str) -> list[tuple[int, str]]:
    """Return a key that sorts `v100-10` behind `v100-9`."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", device)]


def with_batch_times(plans: Sequence[Plan], kinds: Sequence[GpuType], model: str) -> tuple[Plan, ...]:
    """Return the plans with `exec_ns` of each share, for batches of 1 to its planned size.

    `model`: name of an interference model. Neighbours run batches of their planned size. Shares of more than 100% in
    sum are scaled down to 100%: the processors are oversubscribed.
    """
    by_name = {kind.gpu.name: kind for kind in kinds}
    shares: list[PlacedShare] = []
    for present in shares_by_device(plans).values():
        shares += _with_times(present, by_name[present[0].placement.hardware], INTERFERENCE_MODELS[model])
    return with_shares(plans, shares)


def _with_times(shares: Sequence[PlacedShare], kind: GpuType, model: InterferenceModel) -> list[PlacedShare]:
    coefficients, percent = device_sizes(shares, kind)
    timed = []
    for slot, share in enumerate(shares):
        largest = share.placement.max_batch
        batch = np.tile([float(other.placement.max_batch) for other in shares], (largest, 1))
        batch[:, slot] = np.arange(1, largest + 1)
        gpu_ms = predict_shares(model, kind.gpu, coefficients[:, None, :], batch, percent[None, :]).gpu_ms[:, slot]
        times = tuple((size, ms(time_ms)) for size, time_ms in enumerate(gpu_ms.tolist(), start=1))
        timed.append(share._replace(placement=msgspec.structs.replace(share.placement, exec_ns=times)))
    return timed


def device_sizes(shares: Sequence[PlacedShare], kind: GpuType) -> tuple[Array, Array]:
    """Return the coefficients, and the percents of at most 100 in sum."""
    percent = np.array([share.placement.percent for share in shares])
    percent *= min(1.0, 100 / float(percent.sum()))
    return stack_coefficients([kind.models[share.placement.coefficients] for share in shares]), percent
