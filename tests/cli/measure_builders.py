"""Builders for test_measure.py and test_measure_options.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cli.simulated_bench import SimulatedBench
from horologe_cli.commands.measuring.measure_options import MeasureOptions
from horologe_cli.measuring.measurement_session import MeasurementSession, SessionProgress
from horologe_common.interference.prediction import INTERFERENCE_MODELS, predict_shares, stack_coefficients
from horologe_common.interference.v100 import CALIBRATED
from horologe_planning.interference.coefficients_file import CoefficientsFile, MeasuredRuns, Origin
from horologe_planning.interference.measured_fit import FitOptions, fit_measurements
from horologe_planning.interference.measurement_plan import RunSizes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


MODELS = ("alexnet", "resnet50", "ssd", "vgg19")
ORIGIN = Origin("v100", "2026-01-31", "abc", "simulated")
SIZES = RunSizes()
EXACT = CoefficientsFile(CALIBRATED.gpu, tuple(CALIBRATED.models.values()))


def measure(
    bench: SimulatedBench,
    models: Sequence[str] = MODELS,
    sizes: RunSizes = SIZES,
    earlier: MeasuredRuns | None = None,
    stored: list[MeasuredRuns] | None = None,
) -> MeasuredRuns:
    progress = SessionProgress(lambda done, total, run: None, (stored if stored is not None else []).append)
    return MeasurementSession(bench, models, sizes, ORIGIN, earlier).measure(progress)


def fitted(measurements: MeasuredRuns, **options: object) -> CoefficientsFile:
    return fit_measurements(measurements, FitOptions("v100", **options)).content  # type: ignore[arg-type]


def predictions(content: CoefficientsFile) -> np.ndarray:
    gpu, models = content.catalogue
    coefficients = stack_coefficients([models[name] for name in MODELS])
    batch, share = np.array([4.0, 8, 16, 24]), np.array([10.0, 20, 30, 40])
    return np.asarray(
        predict_shares(INTERFERENCE_MODELS[content.interference_model], gpu, coefficients, batch, share).latency_ms
    )


def options(tmp_path: Path, **changes: object) -> MeasureOptions:
    defaults = MeasureOptions(
        ["pretend"], tmp_path / "out.json", tmp_path / "models", "cpu", "", "", 1.0, "50,100", 2, "", 0.1, None, False
    )
    return defaults._replace(**changes)  # type: ignore[arg-type]
