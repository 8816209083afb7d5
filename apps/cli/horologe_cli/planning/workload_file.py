"""File of workloads for `horologe plan make`: workloads, GPU types and the safety margin, as TOML."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from horologe_common.interference.prediction import DEFAULT_INTERFERENCE_MODEL
from horologe_common.interference.v100 import V100_CATALOGUES
from horologe_common.service.settings import DURATIONS, SettingsError, parse_quantity
from horologe_common.service.user_files import MAX_DOCUMENT_BYTES, read_toml
from horologe_planning.interference.coefficients_file import CoefficientsError, read_coefficients
from horologe_planning.provisioning.workloads import GpuType, ProvisioningOptions, Workload, check_workloads

if TYPE_CHECKING:
    from pathlib import Path


WORKLOADS_SUFFIX = ".toml"
"""End of the name of a file of workloads."""
CATALOGUE = {"v100": V100_CATALOGUES}
"""GPU type -> interference model -> coefficients."""


class GpuEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Table `[gpu.NAME]`. NAME is the hardware type of its workers (`worker.hardware`)."""

    coefficients: str = ""
    """File of `horologe measure --interference`, relative to this file. Empty: the coefficients of the catalogue."""
    price: float | None = None
    """Dollars per hour. Without it, that of the coefficients."""
    time_factor: float = 1.0
    """Multiplies all times, as `emulated.sharing.time_factor` of models on emulated devices does."""


class WorkloadEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Table `[[workload]]`."""

    model: str
    """Model of the coefficients."""
    rate: float
    """Requests per second."""
    slo: str
    """Deadline of a request, with unit."""
    name: str = ""
    """Served model that requests name. Empty: `model`."""
    batch_sizes: tuple[int, ...] = ()
    """Batch sizes that the served model is compiled for. Empty: 1 to 32."""


class WorkloadFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of the file."""

    workload: tuple[WorkloadEntry, ...]
    gpu: dict[str, GpuEntry] = msgspec.field(default_factory=lambda: {"v100": GpuEntry()})
    margin: float = 1.0
    """Standard deviations of the prediction error that the plan leaves room for."""
    interference_model: str = ""
    """Empty: that of the coefficients files, else the default."""


class ProvisioningProblem(NamedTuple):
    """Workloads, GPU types and options, checked."""

    workloads: list[Workload]
    kinds: list[GpuType]
    options: ProvisioningOptions


def read_problem_file(path: Path, margin: float | None = None) -> ProvisioningProblem:
    """Return the problem of a file, with another margin if it is given.

    Raises SettingsError and ProvisioningError that name the file or the workload, the field, its value and the value
    wanted.
    """
    try:
        content = msgspec.convert(read_toml(path, MAX_DOCUMENT_BYTES, wait=True), WorkloadFile)
    except ValueError as error:
        raise SettingsError(f"{path}: {error}") from error
    files = {name: path.parent / entry.coefficients for name, entry in content.gpu.items() if entry.coefficients}
    kinds, model = _gpu_types(content, files)
    options = ProvisioningOptions(model, content.margin if margin is None else margin)
    options.validate()
    workloads = [_workload(entry) for entry in content.workload]
    check_workloads(workloads, kinds)
    return ProvisioningProblem(workloads, kinds, options)


def _gpu_types(content: WorkloadFile, files: dict[str, Path]) -> tuple[list[GpuType], str]:
    """Return the GPU types, and the interference model that all their coefficients are for."""
    try:
        read = {name: read_coefficients(file) for name, file in files.items()}
    except CoefficientsError as error:
        raise SettingsError(str(error)) from error
    models = {name: measured.interference_model for name, measured in read.items()}
    model = content.interference_model or next(iter(models.values()), DEFAULT_INTERFERENCE_MODEL)
    kinds = []
    for name, entry in content.gpu.items():
        if name in read:
            if models[name] != model:
                raise SettingsError(f"gpu.{name}: coefficients: got those of {models[name]!r}, wanted {model!r}")
            gpu, found = read[name].catalogue
        elif name in CATALOGUE and model in CATALOGUE[name]:
            gpu, found = CATALOGUE[name][model]
        else:
            wanted = f"coefficients = FILE, or one of {', '.join(CATALOGUE)}"
            raise SettingsError(f"gpu.{name}: got no coefficients for the model {model!r}, wanted {wanted}")
        price = gpu.price_per_hour if entry.price is None else entry.price
        gpu = msgspec.structs.replace(gpu, name=name, price_per_hour=price)
        try:
            kinds.append(GpuType(gpu, found).with_times(entry.time_factor))
            gpu.validate()
        except ValueError as error:
            raise SettingsError(f"gpu.{error}") from error
    return kinds, model


def _workload(entry: WorkloadEntry) -> Workload:
    name = entry.name or entry.model
    slo_ms = parse_quantity(f"workload {name!r}: slo", entry.slo, DURATIONS) / 1e6
    return Workload(name, entry.model, entry.rate, slo_ms, entry.batch_sizes)
