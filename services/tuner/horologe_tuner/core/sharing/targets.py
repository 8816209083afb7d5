"""Targets of a sharing plan for each workload: its model, SLO and batch size, and its shares of devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.clock import ms
from horologe_planning.provisioning.workloads import (
    BATCH_LIMIT,
    MAX_MS,
    MAX_RATE,
    are_batch_times,
    parse_sharing_plan,
)

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from horologe_planning.provisioning.workloads import SharingPlan

WHOLE = 100.0
"""Percent of a device."""
ROUNDING = 1e-6
"""Tolerance of a sum of percents: floating-point error."""
MAX_WORKLOADS, MAX_SHARES = 4096, 16_384
MODEL_LENGTH = 512
"""Characters of the name of a model, a device or a hardware type."""
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
            new = WorkloadTarget(
                share.workload, placement.served_model or share.workload, placement.rate, ms(placement.slo_ms),
                placement.batch, (share,), {device: placement.exec_ns}, ms(placement.latency_ms),
            )  # fmt: skip
            known = targets.get(new.name)
            targets[new.name] = new if known is None else _merge(known, new)
    if not targets:
        raise ValueError(f"gpus: got 0 workloads, wanted 1 to {MAX_WORKLOADS}")
    together = TargetChecks()
    for target in targets.values():
        together.add(target)
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


class TargetChecks:
    """Targets that can be carried out together: those of a plan, which has arrived or was stored."""

    def __init__(self) -> None:
        self._names: dict[str, bool] = {}
        self._models: dict[str, str] = {}
        self._workers: dict[str, bool] = {}
        self._percents: dict[str, float] = {}

    def add(self, target: WorkloadTarget) -> None:
        """Add a target. Raise ValueError, and leave it out, if it is not valid or does not fit the others."""
        check_target(target)
        if target.name in self._names or len(self._names) >= MAX_WORKLOADS:
            wanted = f"wanted a different name for each of at most {MAX_WORKLOADS} workloads"
            raise ValueError(f"workload {target.name!r}: name: {wanted}")
        if (other := self._models.get(target.model, target.name)) != target.name:
            raise ValueError(
                f"workload {target.name!r}: model: got {target.model!r}, which workload {other!r} has, wanted a model "
                "of its own: the controller tells workloads apart by their models"
            )
        workers = {share.resized(0.0).worker: share.device for share in target.shares}
        repeated = [device for worker, device in workers.items() if worker in self._workers]
        if repeated or len(workers) < len(target.shares):
            device = (repeated or [share.device for share in target.shares])[-1]
            raise ValueError(f"workload {target.name!r}: device: got {device!r} twice, wanted one share of it")
        if len(self._workers) + len(workers) > MAX_SHARES:
            raise ValueError(f"workload {target.name!r}: shares: wanted at most {MAX_SHARES} of all workloads")
        added = percent_by_device(target.shares)
        for device, percent in added.items():
            if (total := self._percents.get(device, 0.0) + percent) > WHOLE + ROUNDING:
                raise ValueError(f"device {device!r}: share_percent: got {total:g} in all, wanted at most 100")
        self._names[target.name], self._models[target.model] = True, target.name
        self._workers |= dict.fromkeys(workers, True)
        for device, percent in added.items():
            self._percents[device] = self._percents.get(device, 0.0) + percent


def check_target(target: WorkloadTarget) -> None:
    """Raise ValueError that names the first invalid field of a target."""
    place = f"workload {target.name!r}: "
    if not target.shares or any(share.workload != target.name for share in target.shares):
        raise ValueError(f"{place}shares: got {len(target.shares)}, wanted at least one, and all of this workload")
    for share in target.shares:
        check_share(share)
    if not 1 <= len(target.model) <= MODEL_LENGTH:
        raise ValueError(f"{place}model: got {target.model[:MODEL_LENGTH]!r}, wanted 1 to {MODEL_LENGTH} characters")
    if not 0 < target.rate <= MAX_RATE * MAX_SHARES:
        raise ValueError(f"{place}rate: got {target.rate:g}, wanted a finite number above 0")
    if not 1 <= target.max_batch <= BATCH_LIMIT:
        raise ValueError(f"{place}max_batch: got {target.max_batch}, wanted 1 to {BATCH_LIMIT}")
    for field, least in (("slo_ns", 1), ("latency_ns", 0)):
        if not least <= (value := getattr(target, field)) <= ms(MAX_MS):
            raise ValueError(f"{place}{field}: got {value}, wanted {least} to {ms(MAX_MS)}")
    if not all(are_batch_times(exec_ns, target.max_batch) for exec_ns in target.exec_ns.values()):
        raise ValueError(f"{place}exec_ns: wanted times of at most a day for batches of 1 to {target.max_batch}")


def check_elsewhere(target: WorkloadTarget, elsewhere: Container[str]) -> None:
    """Raise ValueError if the model of a target is among those of pipelines."""
    if target.model in elsewhere:
        raise ValueError(f"workload {target.name!r}: model {target.model!r}: planned in a pipeline")


def check_share(share: DeviceShare) -> None:
    """Raise ValueError that names the first invalid field of a share."""
    for field, name in (("workload", share.workload), ("device", share.device)):
        if not name or not NAME_CHARACTERS.issuperset(name):
            raise ValueError(f"{field}: got {name!r}, wanted letters, digits, '-', '_' and '.'")
    if len(share.workload) > NAME_LENGTH:
        raise ValueError(f"workload: got {share.workload!r}, wanted at most {NAME_LENGTH} characters")
    for field, text in (("device", share.device), ("hardware", share.hardware)):
        if len(text) > MODEL_LENGTH:
            raise ValueError(f"{field}: got {text[:MODEL_LENGTH]!r}, wanted at most {MODEL_LENGTH} characters")
    if not 0 < share.percent <= WHOLE + ROUNDING:
        raise ValueError(f"share_percent: got {share.percent:g}, wanted a number above 0 of at most 100")


def percent_by_device(shares: Iterable[DeviceShare]) -> dict[str, float]:
    """Return the sum of the shares of each device."""
    totals: dict[str, float] = {}
    for share in shares:
        totals[share.device] = totals.get(share.device, 0.0) + share.percent
    return totals
