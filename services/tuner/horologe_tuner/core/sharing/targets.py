"""Targets of a sharing plan for each workload: its model, SLO and batch size, and its shares of devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.clock import ms
from horologe_tuner.core.provisioning.workloads import parse_sharing_plan

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horologe_tuner.core.provisioning.workloads import SharingPlan

WHOLE = 100.0
"""Percent of a device."""
ROUNDING = 1e-6
"""Tolerance of a sum of percents: floating-point error."""
MAX_WORKLOADS, MAX_SHARES = 4096, 16_384
NAME_LENGTH, DEVICE_LENGTH = 40, 12
"""Characters of a workload's name, and of the end of a device's id, in the name of a worker."""
NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")
"""Characters of a worker's instance name, which contains the names of workload and device."""


class DeviceShare(msgspec.Struct, frozen=True):
    """A share of a device for a workload. Each share has a worker process of its own."""

    workload: str
    device: str
    hardware: str
    percent: float

    @property
    def worker(self) -> str:
        """Instance name of the share's worker. A share of another size has another worker."""
        return f"{self.workload}.{self.device[-DEVICE_LENGTH:]}.{round(self.percent * 10)}"

    @property
    def place(self) -> tuple[str, str]:
        """Workload and device: what stays when the share is resized."""
        return self.workload, self.device

    def resized(self, percent: float) -> DeviceShare:
        """Return the share with another size."""
        return msgspec.structs.replace(self, percent=percent)


class WorkloadTarget(msgspec.Struct, frozen=True):
    """A workload as planned. `exec_ns`: predicted time of a batch beside the neighbours, by device and batch size."""

    name: str
    model: str
    rate: float
    slo_ns: int
    max_batch: int
    shares: tuple[DeviceShare, ...]
    exec_ns: dict[str, dict[int, int]]
    latency_ns: int = 0
    """Predicted execution latency of a planned batch; of several shares, the longest."""


def parse_targets(document: bytes) -> dict[str, WorkloadTarget]:
    """Return the targets of a sharing plan in JSON, by workload. Raises ValueError for a plan that is not valid."""
    return collect_targets(parse_sharing_plan(document))


def collect_targets(plan: SharingPlan) -> dict[str, WorkloadTarget]:
    """Return the targets of a valid plan, by workload. Raises ValueError if the shares cannot be carried out."""
    targets: dict[str, WorkloadTarget] = {}
    for device, gpu in zip(plan.devices(), plan.gpus, strict=True):
        for placement in gpu.placements:
            share = DeviceShare(placement.workload, device, gpu.gpu_type, placement.share_percent)
            _check_share(share)
            new = WorkloadTarget(
                share.workload, placement.served_model or share.workload, placement.rate, ms(placement.slo_ms),
                placement.batch, (share,), {device: placement.exec_ns}, ms(placement.latency_ms),
            )  # fmt: skip
            known = targets.get(new.name)
            targets[new.name] = new if known is None else _merge(known, new)
    if not 1 <= len(targets) <= MAX_WORKLOADS:
        raise ValueError(f"gpus: got {len(targets)} workloads, wanted 1 to {MAX_WORKLOADS}")
    _check_names(targets.values())
    for device, total in percent_by_device(share for target in targets.values() for share in target.shares).items():
        if total > WHOLE + ROUNDING:
            raise ValueError(f"device {device!r}: share_percent: got {total:g} in all, wanted at most 100")
    return targets


def _merge(known: WorkloadTarget, new: WorkloadTarget) -> WorkloadTarget:
    """Return the target of a workload with several shares, for the sum of their rates."""
    for field in ("model", "slo_ns"):
        if (value := getattr(new, field)) != (wanted := getattr(known, field)):
            raise ValueError(f"workload {new.name!r}: {field}: got {value!r} and {wanted!r}, wanted one for all shares")
    return msgspec.structs.replace(
        known, rate=known.rate + new.rate, max_batch=max(known.max_batch, new.max_batch),
        shares=known.shares + new.shares, exec_ns=known.exec_ns | new.exec_ns,
        latency_ns=max(known.latency_ns, new.latency_ns),
    )  # fmt: skip


def _check_share(share: DeviceShare) -> None:
    for field, name in (("workload", share.workload), ("device", share.device)):
        if not name or not NAME_CHARACTERS.issuperset(name):
            raise ValueError(f"{field}: got {name!r}, wanted letters, digits, '-', '_' and '.'")
    if len(share.workload) > NAME_LENGTH:
        raise ValueError(f"workload: got {share.workload!r}, wanted at most {NAME_LENGTH} characters")


def _check_names(targets: Iterable[WorkloadTarget]) -> None:
    """Raise ValueError if two workloads have one model, or two shares of a workload are on one device."""
    models: dict[str, str] = {}
    places: dict[str, bool] = {}
    for target in targets:
        other = models.setdefault(target.model, target.name)
        if other != target.name:
            raise ValueError(
                f"workload {target.name!r}: model: got {target.model!r}, which workload {other!r} has, wanted a model "
                "of its own: the controller tells workloads apart by their models"
            )
        for share in target.shares:
            if (place := share.resized(0.0).worker) in places:
                raise ValueError(
                    f"workload {target.name!r}: device: got {share.device!r} twice, wanted one share of it"
                )
            places[place] = True
    if len(places) > MAX_SHARES:
        raise ValueError(f"gpus: got {len(places)} shares, wanted at most {MAX_SHARES}")


def percent_by_device(shares: Iterable[DeviceShare]) -> dict[str, float]:
    """Return the sum of the shares of each device."""
    totals: dict[str, float] = {}
    for share in shares:
        totals[share.device] = totals.get(share.device, 0.0) + share.percent
    return totals
