"""A provisioning problem: served models with their rates and SLOs, GPU types, and options.

`Workload("resnet50", "resnet50", 400.0, 40.0)`: 400 requests per second, each answered within 40 ms. The margin is for
errors of the prediction. With `margin=1.0`, `vgg19` of the package's example gets 37.5% of the V100, with `margin=2.0`
40% (both with `free_margin=0.0`).
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from horologe_common.clock import ms
from horologe_common.interference.prediction import DEFAULT_INTERFERENCE_MODEL, INTERFERENCE_MODELS
from horologe_planning.report import Infeasible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_common.interference.coefficients import GpuCoefficients, ModelCoefficients


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


class ProvisioningOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of provisioning. The defaults give the cheapest plan found."""

    model: str = DEFAULT_INTERFERENCE_MODEL
    """Name of an interference model."""
    margin: float = 1.0
    """Safety margin: predicted latency times 1 + `margin` * relative error of the model must meet the SLO."""
    free_margin: float = 3.0
    """Largest margin that a plan gets if it costs no more than with `margin`."""

    def validate(self) -> None:
        """Raise ProvisioningError that names the invalid option, its value and the range wanted."""
        if self.model not in INTERFERENCE_MODELS:
            wanted = ", ".join(INTERFERENCE_MODELS)
            raise ProvisioningError(f"model: got {self.model!r}, wanted one of {wanted}")
        for field in ("margin", "free_margin"):
            if not 0 <= (value := getattr(self, field)) <= 10:
                raise ProvisioningError(f"{field}: got {value:g}, wanted 0 to 10 standard deviations")


DEFAULT_OPTIONS = ProvisioningOptions()


class GpuType(NamedTuple):
    """A GPU type with the models that were profiled on it."""

    gpu: GpuCoefficients
    models: Mapping[str, ModelCoefficients]

    @property
    def whole(self) -> int:
        """r_max in steps of r_unit."""
        return int(100 / self.gpu.share_unit_percent + 1e-9)

    def with_times(self, factor: float) -> GpuType:
        """Return the type with all times multiplied. Power and L2 utilisation of a workload stay the same.

        Raises ValueError if the factor is not positive and finite.
        """
        if not (isfinite(factor) and factor > 0):
            raise ValueError(f"{self.gpu.name}: time_factor: got {factor:g}, wanted a finite number above 0")
        delays = ("scheduling_slope_ms", "scheduling_offset_ms")
        gpu = msgspec.structs.replace(
            self.gpu,
            pcie_bytes_per_ms=self.gpu.pcie_bytes_per_ms / factor,
            **{name: factor * getattr(self.gpu, name) for name in delays},
        )
        times = ("k1", "k2", "k3", "k5", "k6", "scheduling_delay_ms", "alpha_power", "alpha_cacheutil")
        models = {
            name: msgspec.structs.replace(model, **{field: factor * getattr(model, field) for field in times})
            for name, model in self.models.items()
        }
        return GpuType(gpu, models)


def check_workloads(workloads: Sequence[Workload], kinds: Sequence[GpuType]) -> None:
    """Raise ProvisioningError for an invalid workload, a name given twice, an unknown model, or no GPU type."""
    if not kinds:
        raise ProvisioningError("gpu types: got none, wanted at least one")
    names: set[str] = set()
    for workload in workloads:
        workload.validate()
        if workload.name in names:
            raise ProvisioningError(f"workload {workload.name!r}: got the name twice, wanted each once")
        names.add(workload.name)
        if not any(workload.model in kind.models for kind in kinds):
            profiled = ", ".join(sorted({model for kind in kinds for model in kind.models}))
            raise ProvisioningError(
                f"workload {workload.name!r}: model: got {workload.model!r}, wanted one of {profiled}"
            )
