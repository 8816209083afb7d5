"""The table `[emulated.sharing]`: times of an emulated model by its share of a device and by the other shares."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING
from zlib import crc32

from horologe_common.interference.colocation import CoLocatedModel, ExecutionNoise
from horologe_common.interference.prediction import INTERFERENCE_MODELS
from horologe_common.interference.v100 import V100_CATALOGUES
from horologe_gpu_worker.repository.manifest import InvalidModel

if TYPE_CHECKING:
    from horologe_common.interference.coefficients import GpuCoefficients, ModelCoefficients
    from horologe_common.interference.colocation import DeviceActivity
    from horologe_gpu_worker.repository.manifest import EmulatedSharing


def co_located_model(
    where: str, name: str, sharing: EmulatedSharing, share_percent: float, activity: DeviceActivity
) -> CoLocatedModel:
    """Return the times of a model on a share. Raises InvalidModel that names file, field, got and wanted.

    The noise depends on the table's seed and the model's name: its prediction error is the same on every share.
    """
    place = f"{where}: emulated.sharing"
    if sharing.interference not in INTERFERENCE_MODELS:
        wanted = ", ".join(INTERFERENCE_MODELS)
        raise InvalidModel(f"{place}.interference: got {sharing.interference!r}, wanted one of {wanted}")
    if not (isfinite(sharing.time_factor) and sharing.time_factor > 0):
        raise InvalidModel(f"{place}.time_factor: got {sharing.time_factor:g}, wanted a finite number above 0")
    gpu, coefficients = find_coefficients(place, sharing)
    try:
        gpu.validate()
        coefficients.validate()
    except ValueError as error:
        raise InvalidModel(f"{place}: {error}") from error
    seed = [abs(sharing.seed), crc32(name.encode())]
    noise = ExecutionNoise(coefficients, seed) if sharing.noise else None
    return CoLocatedModel(gpu, coefficients, sharing.interference, share_percent, activity, noise, sharing.time_factor)


def find_coefficients(place: str, sharing: EmulatedSharing) -> tuple[GpuCoefficients, ModelCoefficients]:
    """Return the coefficients of the table, or the built-in ones that it names."""
    catalogue = V100_CATALOGUES[sharing.interference]
    gpu, model = sharing.gpu, sharing.model
    if isinstance(gpu, str):
        if gpu != catalogue.gpu.name:
            raise InvalidModel(f"{place}.gpu: got {gpu!r}, wanted {catalogue.gpu.name!r} or a table of coefficients")
        gpu = catalogue.gpu
    if isinstance(model, str):
        if model not in catalogue.models:
            wanted = ", ".join(catalogue.models)
            raise InvalidModel(f"{place}.model: got {model!r}, wanted one of {wanted}, or a table of coefficients")
        model = catalogue.models[model]
    return gpu, model
