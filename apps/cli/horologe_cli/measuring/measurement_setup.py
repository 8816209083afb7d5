"""Options of `horologe measure`: folders of models, the sensor and the mechanism of a device, numbers, assumptions."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from horologe_common.interference.coefficients_file import Origin
from horologe_common.service.settings import SettingsError
from horologe_gpu_worker.measurement.device_bench import BenchSettings
from horologe_gpu_worker.measurement.device_sensor import SensorFailed
from horologe_gpu_worker.measurement.device_sensors import DEVICE_SENSORS
from horologe_gpu_worker.measurement.share_limits import SHARE_LIMITS
from horologe_gpu_worker.runtime import DeviceConfig

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from horologe_gpu_worker.measurement.device_sensor import DeviceSensor

DEVICE_KINDS = {"cuda": ("mps", "nvml"), "cpu": ("cpu", "host"), "emulated": ("emulated", "emulated")}
"""Kind of device -> its default mechanism and its sensor."""
ASSUMABLE = (
    "k1", "k2", "k3", "k4", "k5", "k6", "alpha_cache", "alpha_power", "beta_power", "alpha_cacheutil",
    "beta_cacheutil", "frequency_slope", "scheduling_slope_ms", "scheduling_offset_ms", "cache_scale",
)  # fmt: skip
"""Coefficients that runs determine."""


def find_models(repository: Path, names: Sequence[str]) -> dict[str, Path]:
    """Return the folder of each model's newest version, or of the version in `name/version`.

    Raises SettingsError for a model that the repository does not have.
    """
    folders = {}
    for text in names:
        name, _, number = text.partition("/")
        place = repository / name
        versions = sorted((path for path in place.glob(number or "*") if path.is_dir()), key=_version_key)
        if not versions:
            known = ", ".join(sorted(path.name for path in repository.glob("*") if path.is_dir())) or "none"
            raise SettingsError(f"MODEL: got {text!r}, wanted a model of {repository}: {known}")
        folders[name] = versions[-1]
    return folders


def _version_key(path: Path) -> tuple[int, str]:
    return (int(path.name) if path.name.isdecimal() else -1), path.name


def bench_settings(
    folders: dict[str, Path], device: str, mechanism: str, seconds: float, emulated_device: Path
) -> BenchSettings:
    """Return the settings of the bench. Raises SettingsError for an unknown device or mechanism."""
    kind = device.partition(":")[0]
    if kind not in DEVICE_KINDS:
        raise SettingsError(f"--device: got {device!r}, wanted one of {', '.join(DEVICE_KINDS)}")
    mechanism = mechanism or DEVICE_KINDS[kind][0]
    if mechanism not in SHARE_LIMITS:
        raise SettingsError(f"--mechanism: got {mechanism!r}, wanted one of {', '.join(SHARE_LIMITS)}")
    return BenchSettings(folders, device, mechanism, seconds, str(emulated_device) if kind == "emulated" else "")


def open_sensor(settings: BenchSettings, no_power: bool) -> DeviceSensor:
    """Return the sensor of the device. Raises SensorFailed, whose reason names --no-power."""
    kind = "host" if no_power else DEVICE_KINDS[settings.device.partition(":")[0]][1]
    config = DeviceConfig(settings.device, emulated_device=settings.emulated_device)
    try:
        return DEVICE_SENSORS[kind](config, next(iter(settings.folders.values())))
    except SensorFailed as error:
        raise SensorFailed(
            f"{error.reason}. --no-power measures without it: plans then ignore the power cap"
        ) from error


def describe_origin(settings: BenchSettings, sensor: DeviceSensor) -> Origin:
    """Return device, day and revision of the measurement."""
    limits = sensor.limits()
    try:
        revision = version("horologe")
    except PackageNotFoundError:  # run from a checkout
        revision = "unknown"
    return Origin(limits.name, datetime.now(UTC).date().isoformat(), revision, settings.mechanism, limits.driver)


def parse_numbers(option: str, text: str) -> tuple[float, ...]:
    """Return the numbers of an option like "10,50,100"."""
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise SettingsError(f"{option}: got {text!r}, wanted numbers, as 10,50,100") from None


def parse_assumptions(texts: Sequence[str]) -> dict[str, float]:
    """Return coefficient -> value, from texts like "k4=0"."""
    assumed = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            assumed[name] = float(value)
        except ValueError:
            name = ""
        if name not in ASSUMABLE:
            raise SettingsError(f"--assume: got {text!r}, wanted NAME=VALUE with one of {', '.join(ASSUMABLE)}")
    return assumed


def device_file_name(name: str) -> str:
    """Return a device's product name as the name of a GPU type: `nvidia-h100-80gb-hbm3`."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-").lower()
