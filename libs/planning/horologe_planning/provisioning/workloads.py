"""Workloads to provision, and the plan with a share of a GPU for each."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from horologe_common.clock import ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class ProvisioningError(ValueError):
    """A workload or a plan that is invalid."""


class UnattainableSlo(ProvisioningError):
    """A workload that no GPU can serve within its SLO."""


BATCH_LIMIT = 32
"""Largest batch that the models are profiled at."""


MAX_RATE, MAX_MS = 1e12, 86_400_000.0
"""Bounds of rates in requests per second, and of times in milliseconds: a day."""


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A served model with its arrival rate and SLO."""

    name: str
    """Name of the served model, as in requests."""
    model: str
    """Name of its coefficients."""
    rate: float
    """R, requests per second."""
    slo_ms: float
    """T_slo of a request. Half of it is for the execution of a batch, the rest for batching and queueing (Eq. 14)."""
    batch_sizes: tuple[int, ...] = ()
    """Batch sizes that the served model is compiled for. Empty: 1 to `BATCH_LIMIT`."""

    @property
    def batches(self) -> tuple[int, ...]:
        """Permitted batch sizes, ascending."""
        return self.batch_sizes or tuple(range(1, BATCH_LIMIT + 1))

    def validate(self) -> None:
        """Raise ProvisioningError that names the invalid field, its value and the range wanted."""
        for field in ("name", "model"):
            if not getattr(self, field):
                raise ProvisioningError(f"workload {self.name!r}: {field}: got no name, wanted one")
        for field, most in (("rate", MAX_RATE), ("slo_ms", MAX_MS)):
            value = getattr(self, field)
            if not 0 < value <= most:
                wanted = f"a finite number above 0 of at most {most:g}"
                raise ProvisioningError(f"workload {self.name!r}: {field}: got {value:g}, wanted {wanted}")
        sizes = self.batch_sizes
        if list(sizes) != sorted(set(sizes)) or any(not 1 <= size <= BATCH_LIMIT for size in sizes):
            wanted = f"ascending numbers of 1 to {BATCH_LIMIT}, the largest batch with coefficients"
            raise ProvisioningError(f"workload {self.name!r}: batch_sizes: got {list(sizes)}, wanted {wanted}")


class Placement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A workload's share of a GPU. A workload that exceeds one GPU has several."""

    workload: str
    model: str
    rate: float
    """Requests per second of this share."""
    slo_ms: float
    batch: int
    share_percent: float
    latency_ms: float
    """Predicted execution latency of a batch beside the neighbours; at most half of the SLO, less the margin."""
    throughput: float
    """Predicted requests per second beside the neighbours."""
    deviation_ms: float = 0.0
    """Standard deviation of measured latency around `latency_ms`."""
    exec_ns: dict[int, int] = {}
    """Predicted GPU execution time (t_gpu of Eq. 4) by batch size, beside the neighbours at their planned batches."""
    served_model: str = ""
    """Name in the model repository, by which clients call the workload. Empty: the workload's name."""

    @property
    def headroom(self) -> float:
        """Part of the permitted latency, SLO / 2, that the prediction leaves."""
        return 1 - self.latency_ms / (self.slo_ms / 2)

    def validate(self) -> None:
        """Raise ProvisioningError that names the first invalid field, its value and the range wanted."""
        Workload(self.workload, self.model, self.rate, self.slo_ms).validate()
        for field, most in (("batch", BATCH_LIMIT), ("share_percent", 100.0)):
            value = getattr(self, field)
            if not 0 < value <= most:
                wanted = f"a number above 0 of at most {most:g}"
                raise ProvisioningError(f"workload {self.workload!r}: {field}: got {value:g}, wanted {wanted}")
        for field, most in (("latency_ms", MAX_MS), ("throughput", MAX_RATE), ("deviation_ms", MAX_MS)):
            value = getattr(self, field)
            if not 0 <= value <= most:
                wanted = f"a finite number from 0 to {most:g}"
                raise ProvisioningError(f"workload {self.workload!r}: {field}: got {value:g}, wanted {wanted}")
        if not are_batch_times(self.exec_ns, self.batch):
            wanted = f"times above 0 of at most a day for batches of 1 to {self.batch}"
            raise ProvisioningError(f"workload {self.workload!r}: exec_ns: got {self.exec_ns}, wanted {wanted}")


def are_batch_times(exec_ns: Mapping[int, int], batch: int) -> bool:
    """Return whether these are valid times in ns by batch size, up to `batch`."""
    return all(1 <= size <= batch and 0 < time_ns <= ms(MAX_MS) for size, time_ns in exec_ns.items())


def placed_workloads(placements: Iterable[Placement]) -> list[Workload]:
    """Return the workload of each share, with the planned batch size as the only one."""
    return [Workload(p.workload, p.model, p.rate, p.slo_ms, (p.batch,)) for p in placements]


class PlannedGpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A GPU with the shares on it."""

    gpu_type: str
    placements: tuple[Placement, ...]
    device: str = ""
    """Id of the physical device. Empty: the type and the GPU's number among those of its type, as `v100-1`."""

    @property
    def share_percent(self) -> float:
        """Sum of the shares."""
        return sum(placement.share_percent for placement in self.placements)


MAX_GPUS = 10_000


class SharingPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """GPUs and shares for a set of workloads, and their cost."""

    gpus: tuple[PlannedGpu, ...]
    cost_per_hour: float
    cost_bound: float = 0.0
    """No plan with the batch sizes and the parts of split workloads that were tried costs less. 0: not computed."""
    margin: float = 0.0
    """Standard deviations of the prediction error that the plan leaves room for, at least those wanted."""

    def devices(self) -> list[str]:
        """Return the id of each GPU."""
        names, numbers = list[str](), Counter[str]()
        for gpu in self.gpus:
            numbers[gpu.gpu_type] += 1
            names.append(gpu.device or f"{gpu.gpu_type}-{numbers[gpu.gpu_type]}")
        return names

    def gpu_counts(self) -> dict[str, int]:
        """Return the number of GPUs of each type."""
        return dict(Counter(gpu.gpu_type for gpu in self.gpus))

    def validate(self) -> None:
        """Raise ProvisioningError that names the first invalid field, its value and the range wanted."""
        if len(self.gpus) > MAX_GPUS:
            raise ProvisioningError(f"gpus: got {len(self.gpus)}, wanted at most {MAX_GPUS}")
        for number, gpu in enumerate(self.gpus, start=1):
            place = f"GPU {number} ({gpu.gpu_type})"
            if not gpu.gpu_type or not gpu.placements:
                raise ProvisioningError(f"{place}: got no type or no share, wanted both")
            for placement in gpu.placements:
                placement.validate()
            if gpu.share_percent > 100 + 1e-6:
                shares = " + ".join(f"{placement.share_percent:g}" for placement in gpu.placements)
                wanted = "at most 100% of a GPU"
                raise ProvisioningError(f"{place}: shares: got {shares} = {gpu.share_percent:g}%, wanted {wanted}")


def parse_sharing_plan(document: bytes | str) -> SharingPlan:
    """Return the plan in a JSON document. Raises ProvisioningError for one that is not valid."""
    try:
        plan = msgspec.json.decode(document, type=SharingPlan)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProvisioningError(f"plan: {error}") from error
    plan.validate()
    return plan
