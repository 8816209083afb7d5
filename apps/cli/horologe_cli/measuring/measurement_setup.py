"""Options of `horologe measure`: folders of models, the sensor and the mechanism of a device, numbers, assumptions."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from horologe_common.service.settings import SettingsError, load_settings
from horologe_gpu_worker.measurement.device_bench import BenchSettings
from horologe_gpu_worker.measurement.device_sensor import SensorFailed
from horologe_gpu_worker.measurement.device_sensors import DEVICE_SENSORS
from horologe_gpu_worker.settings import WorkerSettings, device_config
from horologe_planning.interference.coefficients_file import Origin

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
    folders: dict[str, Path], device: str, mechanism: str, seconds: float, scratch: Path
) -> BenchSettings:
    """Return the settings of the bench: those of a worker (`HOROLOGE_WORKER_...`), with the device and its mechanism.

    Raises SettingsError.
    """
    kind = device.partition(":")[0]
    if kind not in DEVICE_KINDS:
        raise SettingsError(f"--device: got {device!r}, wanted one of {', '.join(DEVICE_KINDS)}")
    flags = {"device": device, "share_mechanism": mechanism or DEVICE_KINDS[kind][0], "cache": str(scratch)}
    if kind == "emulated":
        flags["emulated_device"] = str(scratch / "device")
    return BenchSettings(folders, load_settings(WorkerSettings, "worker", None, os.environ, flags), seconds)


def open_sensor(settings: BenchSettings, no_power: bool) -> DeviceSensor:
    """Return the sensor of the device. Raises SensorFailed, whose reason names --no-power."""
    worker = settings.worker
    kind = "host" if no_power else DEVICE_KINDS[worker.device.partition(":")[0]][1]
    try:
        return DEVICE_SENSORS[kind](device_config(worker), next(iter(settings.folders.values())))
    except SensorFailed as error:
        hint = "--no-power measures without it: plans then ignore the power cap"
        raise SensorFailed(f"{error.reason}. {hint}") from error


def describe_origin(settings: BenchSettings, sensor: DeviceSensor, revision: str) -> Origin:
    """Return device, day and revision of the measurement."""
    limits = sensor.limits()
    try:
        revision = revision or version("horologe")
    except PackageNotFoundError:  # run from a checkout
        revision = "unknown"
    today = datetime.now(UTC).date().isoformat()
    return Origin(limits.name, today, revision, settings.worker.share_mechanism, limits.driver)


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
