"""Workloads to provision, and the plan with a share of a GPU for each."""

from __future__ import annotations

from math import isfinite

import msgspec


class ProvisioningError(ValueError):
    """A workload that is invalid, or that no GPU can serve within its SLO."""


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model with its arrival rate and SLO."""

    name: str
    model: str
    rate: float
    """R, requests per second."""
    slo_ms: float
    """T_slo of a request. Half of it is for the execution of a batch, the rest for batching and queueing (Eq. 14)."""

    def validate(self) -> None:
        """Raise ProvisioningError that names the invalid field, its value and the range wanted."""
        for field in ("name", "model"):
            if not getattr(self, field):
                raise ProvisioningError(f"workload {self.name!r}: {field}: got no name, wanted one")
        for field in ("rate", "slo_ms"):
            value = getattr(self, field)
            if not (isfinite(value) and value > 0):
                raise ProvisioningError(
                    f"workload {self.name!r}: {field}: got {value:g}, wanted a finite number above 0"
                )


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
    served_model: str = ""
    """Name in the model repository, by which clients call the workload. Empty: the workload's name."""


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


class SharingPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """GPUs and shares for a set of workloads, and their cost."""

    gpus: tuple[PlannedGpu, ...]
    cost_per_hour: float
    cost_bound: float = 0.0
    """No plan with the same batch sizes costs less. 0: not computed."""

    def gpu_counts(self) -> dict[str, int]:
        """Return the number of GPUs of each type."""
        counts: dict[str, int] = {}
        for gpu in self.gpus:
            counts[gpu.gpu_type] = counts.get(gpu.gpu_type, 0) + 1
        return counts
