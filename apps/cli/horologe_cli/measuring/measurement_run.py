"""One run of `horologe measure`: measure what the runs file lacks, fit, write the coefficients file."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from horologe_cli.measuring.measurement_report import MeasureDocument, measure_document
from horologe_cli.measuring.measurement_session import MeasurementSession, SessionProgress
from horologe_common.service.settings import SettingsError, load_settings
from horologe_gpu_worker.measurement.device_bench import BenchSettings, DeviceBench
from horologe_gpu_worker.measurement.device_sensor import SensorFailed
from horologe_gpu_worker.measurement.device_sensors import DEVICE_SENSORS
from horologe_gpu_worker.settings import WorkerSettings, resolve_device
from horologe_planning.interference.coefficients_file import MeasuredRuns, Origin, read_measurements, write_document
from horologe_planning.interference.measured_fit import FitOptions, fit_measurements
from horologe_planning.interference.measurement_plan import RunSizes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_cli.commands.measuring.measure_options import MeasureOptions
    from horologe_gpu_worker.measurement.device_sensor import DeviceSensor


DEVICE_KINDS = {"cuda": ("mps", "nvml"), "cpu": ("cpu", "host"), "emulated": ("emulated", "emulated")}
"""Kind of device -> its default mechanism and its sensor."""
ASSUMABLE = (
    "k1", "k2", "k3", "k4", "k5", "k6", "alpha_cache", "alpha_power", "beta_power", "alpha_cacheutil",
    "beta_cacheutil", "frequency_slope", "scheduling_slope_ms", "scheduling_offset_ms", "cache_scale",
)  # fmt: skip
"""Coefficients that runs determine."""


def run_measurement(options: MeasureOptions, report: Callable[[int, int, str], None]) -> MeasureDocument:
    """Measure, fit and write. `report` gets the number of finished and of all runs, and the next run.

    Raises SettingsError, CoefficientsError, OSError, ProfileError, or the errors of the bench. Finished runs are in the
    runs file then.
    """
    sizes = RunSizes(
        parse_numbers("--shares", options.shares), options.copies, parse_numbers("--splits", options.splits)
    )
    sizes.validate()
    assumed, folders = parse_assumptions(options.assume or ()), find_models(options.repository, options.models or [])
    with TemporaryDirectory(prefix="horologe-measure-") as scratch:
        settings = bench_settings(folders, options.device, options.mechanism, options.seconds, Path(scratch))
        sensor = open_sensor(settings, options.no_power)
        bench = DeviceBench(settings, sensor)
        try:
            origin = describe_origin(settings, sensor, options.revision)
            earlier = _read_earlier(options.runs_file, origin)
            session = MeasurementSession(bench, list(folders), sizes, origin, earlier)
            progress = SessionProgress(report, lambda measured: write_document(options.runs_file, measured))
            measurements = session.measure(progress)
        finally:
            bench.close()
            sensor.close()
    name = options.name or device_file_name(measurements.device.name)
    fitted = fit_measurements(measurements, FitOptions(name, options.price, assumed=assumed))
    write_document(options.output, fitted.content)
    return measure_document(str(options.output), fitted, session.failed)


def _read_earlier(file: Path, origin: Origin) -> MeasuredRuns | None:
    """Return the runs of an interrupted command; None if there are none. Raises SettingsError for another device."""
    if not file.exists():
        return None
    earlier = read_measurements(file)
    for field in ("device", "mechanism"):
        got, wanted = getattr(earlier.origin, field), getattr(origin, field)
        if got != wanted:
            raise SettingsError(f"{file}: {field}: got runs of {got!r}, wanted {wanted!r}, or another --output")
    return earlier


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
        return DEVICE_SENSORS[kind](resolve_device(worker), next(iter(settings.folders.values())))
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
