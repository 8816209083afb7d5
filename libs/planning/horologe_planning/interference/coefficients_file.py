"""The files of `horologe measure`, JSON for people to compare and edit: coefficients, and the runs that they come from.

`horologe plan make` reads the coefficients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from horologe_common.interference.coefficients import GpuCoefficients, ModelCoefficients
from horologe_common.interference.measured_runs import MeasuredDevice, MeasuredModel, MeasuredRun
from horologe_common.interference.prediction import DEFAULT_INTERFERENCE_MODEL, INTERFERENCE_MODELS
from horologe_common.interference.v100 import GpuCatalogue
from horologe_common.service.user_files import read_json
from horologe_common.status import describe_error

if TYPE_CHECKING:
    from pathlib import Path

S = TypeVar("S", bound=msgspec.Struct)


class CoefficientsError(ValueError):
    """A file that cannot be read. The message names file, field, value and the value wanted."""


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measurement that a coefficients file comes from."""

    device: str
    date: str
    """ISO 8601, without the time."""
    revision: str
    mechanism: str
    """Mechanism that limited shares: `mps`, `cpu`, `emulated`."""
    driver: str = ""
    cache_source: str = ""
    """Sources of the L2 utilisation: `ncu`, `declared`, or `estimated` from the bytes that kernels move."""
    runs: int = 0


class CoefficientsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A GPU type and models on it, with the uncertainty and the origin of the coefficients."""

    gpu: GpuCoefficients
    models: tuple[ModelCoefficients, ...]
    interference_model: str = DEFAULT_INTERFERENCE_MODEL
    """Model of `prediction.INTERFERENCE_MODELS` for which the coefficients were fitted."""
    deviations: dict[str, dict[str, float | None]] = {}
    """Name of the GPU type or model -> coefficient -> standard deviation. None: the runs only just determine it."""
    assumed: dict[str, str] = {}
    """Coefficient that the runs do not determine -> the run that is missing and the value that was assumed."""
    origin: Origin | None = None

    @property
    def catalogue(self) -> GpuCatalogue:
        """Return the GPU type with its models by name."""
        return GpuCatalogue(self.gpu, {model.model: model for model in self.models})

    def validate(self) -> None:
        """Raise ValueError that names the first invalid field, its value and the range wanted."""
        self.gpu.validate()
        names = [model.model for model in self.models]
        for model in self.models:
            model.validate()
            if names.count(model.model) > 1:
                raise ValueError(f"models: got {model.model!r} twice, wanted it once")
        if self.interference_model not in INTERFERENCE_MODELS:
            wanted = ", ".join(INTERFERENCE_MODELS)
            raise ValueError(f"interference_model: got {self.interference_model!r}, wanted one of {wanted}")


class MeasuredRuns(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All runs on a device. `horologe measure` writes them beside the coefficients and does not repeat them."""

    device: MeasuredDevice
    origin: Origin
    models: tuple[MeasuredModel, ...] = ()
    runs: tuple[MeasuredRun, ...] = ()


def read_coefficients(path: Path) -> CoefficientsFile:
    """Read and check a coefficients file. Raises CoefficientsError."""
    return _read(path, CoefficientsFile)


def read_measurements(path: Path) -> MeasuredRuns:
    """Read a file of measurements. Raises CoefficientsError."""
    return _read(path, MeasuredRuns)


def write_document(path: Path, content: CoefficientsFile | MeasuredRuns) -> None:
    """Write one of the files. Raises OSError."""
    draft = path.with_suffix(f"{path.suffix}.draft")
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(content)) + b"\n")
    draft.replace(path)


def _read(path: Path, kind: type[S]) -> S:
    try:
        content = read_json(path, kind)
        if isinstance(content, CoefficientsFile):
            content.validate()
    except (OSError, ValueError) as error:  # ValueError: not JSON, too large, or a value outside its range
        raise CoefficientsError(f"{path}: {describe_error(error)}") from error
    return content
