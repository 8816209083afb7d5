"""Workloads to provision: served models with their rates and SLOs.

`Workload("resnet50", "resnet50", 400.0, 40.0)`: 400 requests per second, each answered within 40 ms.
"""

from __future__ import annotations

import msgspec

from horologe_common.clock import ms
from horologe_planning.infeasible import Infeasible


class ProvisioningError(ValueError):
    """A workload or a plan that is invalid."""


class UnattainableSlo(ProvisioningError, Infeasible):
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

    @property
    def slo_ns(self) -> int:
        """T_slo in nanoseconds, at least 1."""
        return max(1, ms(self.slo_ms))

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
