"""Options, report and command of measurements of a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from typer.testing import CliRunner

from cli.simulated_bench import SimulatedBench
from harness.model_folders import an_emulated_model
from horologe_cli.commands.measuring.measure_options import MeasureOptions
from horologe_cli.main import app
from horologe_cli.measuring import measurement_run
from horologe_cli.measuring.measurement_report import measure_document, measure_text
from horologe_cli.measuring.measurement_run import find_models, run_measurement
from horologe_common.interference.measured_runs import MeasuredDevice
from horologe_common.service.settings import SettingsError
from horologe_gpu_worker.measurement.device_sensor import DeviceLost, SensorFailed
from horologe_gpu_worker.measurement.device_sensors import DEVICE_SENSORS
from horologe_planning.interference.coefficients_file import CoefficientsError, MeasuredRuns, write_document
from horologe_planning.interference.measured_fit import FitOptions, fit_measurements
from horologe_planning.interference.model_measurements import ProfileError

if TYPE_CHECKING:
    from pathlib import Path


from cli.simulated_bench import EXACT, MODELS, ORIGIN, fitted, measure, options, predictions


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"models": ("other",)}, "MODEL: got 'other', wanted a model of .*: pretend"),
        ({"device": "tpu"}, "--device: got 'tpu', wanted one of cuda, cpu, emulated"),
        ({"mechanism": "magic"}, "share_mechanism"),
        ({"shares": "ten"}, "--shares: got 'ten', wanted numbers"),
        ({"assume": ("k9=1",)}, "--assume: got 'k9=1', wanted NAME=VALUE with one of k1"),
        ({"assume": ("k1",)}, "--assume: got 'k1'"),
    ],
)
def test_wrong_options_are_named(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    an_emulated_model(tmp_path / "models")
    with pytest.raises(SettingsError, match=message):
        run_measurement(options(tmp_path, **changes), lambda done, total, run: None)


def test_runs_of_another_device_are_not_continued(tmp_path: Path) -> None:
    an_emulated_model(tmp_path / "models")
    chosen = options(tmp_path)
    write_document(chosen.runs_file, MeasuredRuns(MeasuredDevice("v100", 300, 1530, 50, 1e7), ORIGIN))
    with pytest.raises(SettingsError, match=r"out\.runs\.json: device: got runs of 'v100', wanted"):
        run_measurement(chosen, lambda done, total, run: None)


def test_a_machine_without_nvml_names_the_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise SensorFailed("NVML: no library")

    an_emulated_model(tmp_path / "models")
    monkeypatch.setitem(DEVICE_SENSORS, "nvml", fail)
    with pytest.raises(SensorFailed, match=r"NVML: no library\. --no-power measures without it"):
        run_measurement(options(tmp_path, device="cuda:0"), lambda done, total, run: None)


def test_the_newest_version_of_a_model_is_measured(tmp_path: Path) -> None:
    for version in ("2", "10"):
        an_emulated_model(tmp_path).rename(tmp_path / "pretend" / version)
    assert find_models(tmp_path, ["pretend"])["pretend"].name == "10"
    assert find_models(tmp_path, ["pretend/2"])["pretend"].name == "2"


def test_the_report_names_values_deviations_and_assumptions() -> None:
    measurements = measure(SimulatedBench(noise=0.01))
    fit = fit_measurements(measurements, FitOptions("v100", assumed={"k4": 0.0}))
    document = measure_document("out.json", fit, {"alexnet b1 10%": "it ended"})
    text = measure_text(document)
    assert "frequency_slope" in text
    assert "assumed: k4: as demanded" in text
    assert "failed: alexnet b1 10%: it ended" in text
    assert "written: out.json" in text
    assert set(document.pair_error) == set(MODELS)


def test_the_relative_error_covers_configurations_that_were_not_measured() -> None:
    covered = []
    for seed in range(10):
        content = fitted(measure(SimulatedBench(noise=0.03, seed=seed)))
        errors = predictions(content) / predictions(EXACT) - 1
        deviations = np.array([content.catalogue.models[name].relative_error for name in MODELS])
        covered += (np.abs(errors) <= 2 * deviations).tolist()
    assert np.mean(covered) >= 0.95


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (DeviceLost("the GPU is lost"), 1, ("finished runs are in", "the GPU is lost")),
        (ProfileError("v100: alpha_f: not determined"), 1, ("alpha_f", "out.runs.json", "--assume NAME=VALUE")),
        (CoefficientsError("out.runs.json: no JSON"), 2, ("no JSON",)),
        (SettingsError("--device: got 'tpu'"), 2, ("--device",)),
    ],
)
def test_the_command_ends_with_the_reason(
    error: Exception, code: int, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(chosen: MeasureOptions, report: object) -> None:
        chosen.runs_file.touch()
        raise error

    monkeypatch.setattr(measurement_run, "run_measurement", fail)
    result = CliRunner().invoke(app, ["measure", "--interference", "m", "-o", str(tmp_path / "out.json")])
    assert result.exit_code == code
    assert all(word in result.output.replace("\n", "") for word in words)
