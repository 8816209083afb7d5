"""One run of `horologe measure`: measure what the runs file lacks, fit, write the coefficients file."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from horologe_cli.measuring.measurement_report import MeasureDocument, measure_document
from horologe_cli.measuring.measurement_session import MeasurementSession, SessionProgress
from horologe_cli.measuring.measurement_setup import (
    bench_settings,
    describe_origin,
    device_file_name,
    find_models,
    open_sensor,
    parse_assumptions,
    parse_numbers,
)
from horologe_common.service.settings import SettingsError
from horologe_gpu_worker.measurement.device_bench import DeviceBench
from horologe_planning.interference.coefficients_file import MeasuredRuns, read_measurements, write_document
from horologe_planning.interference.measured_fit import FitOptions, fit_measurements
from horologe_planning.interference.measurement_plan import RunSizes

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_cli.commands.measuring.measure_options import MeasureOptions
    from horologe_planning.interference.coefficients_file import Origin


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
