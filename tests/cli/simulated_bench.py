"""A bench that predicts its runs with the interference model, and measurements, fits and options made with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from horologe_cli.commands.measuring.measure_options import MeasureOptions
from horologe_cli.measuring.measurement_session import MeasurementSession, SessionProgress
from horologe_common.interference.measured_runs import (
    MeasuredDevice,
    MeasuredModel,
    MeasuredRun,
    MeasuredTimes,
)
from horologe_common.interference.prediction import INTERFERENCE_MODELS, predict_shares, run_alone, stack_coefficients
from horologe_common.interference.v100 import CALIBRATED
from horologe_gpu_worker.measurement.share_connection import ShareFailed
from horologe_planning.interference.coefficients_file import CoefficientsFile, MeasuredRuns, Origin
from horologe_planning.interference.measured_fit import FitOptions, fit_measurements
from horologe_planning.interference.measurement_plan import RunSizes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from horologe_common.interference.measured_runs import ShareLoad
    from horologe_common.interference.v100 import GpuCatalogue


MODELS = ("alexnet", "resnet50", "ssd", "vgg19")
ORIGIN = Origin("v100", "2026-01-31", "abc", "simulated")
SIZES = RunSizes()
EXACT = CoefficientsFile(CALIBRATED.gpu, tuple(CALIBRATED.models.values()))


class SimulatedBench:
    """`noise`: standard deviation of a time over its mean. `fail_next`: number of next runs that fail."""

    def __init__(
        self, truth: GpuCatalogue = CALIBRATED, noise: float = 0.0, has_power: bool = True, seed: int = 1
    ) -> None:
        self.truth = truth
        self.runs: list[tuple[ShareLoad, ...]] = []
        self.fail_next = 0
        self._noise = noise
        self._has_power = has_power
        self._rng = np.random.default_rng(seed)

    def measure_device(self, model: str) -> MeasuredDevice:
        gpu = self.truth.gpu
        power = (gpu.max_power_w, gpu.idle_power_w) if self._has_power else (0.0, 0.0)
        return MeasuredDevice(gpu.name, power[0], gpu.max_frequency_mhz, power[1], gpu.pcie_bytes_per_ms)

    def describe_model(self, model: str) -> MeasuredModel:
        coefficients = self.truth.models[model]
        return MeasuredModel(
            model, (1, 2, 4, 8, 16, 32), coefficients.load_bytes, coefficients.feedback_bytes, "declared"
        )

    def run(self, loads: Sequence[ShareLoad]) -> MeasuredRun:
        self.runs.append(tuple(loads))
        if self.fail_next:
            self.fail_next -= 1
            raise ShareFailed("the process ended")
        gpu, models = self.truth.gpu, [self.truth.models[load.model] for load in loads]
        coefficients = stack_coefficients(models)
        batch, share = (np.array([getattr(load, name) for load in loads], float) for name in ("batch", "share_percent"))
        alone = run_alone(gpu, coefficients, batch, share)
        predicted = INTERFERENCE_MODELS["pcie-contention"].predict(gpu, alone)
        slots = len(loads)
        delay = gpu.scheduling_slope_ms * slots + gpu.scheduling_offset_ms if slots > 1 else 0.0
        ratio = float(predicted.frequency_mhz) / gpu.max_frequency_mhz
        scheduling_ms = [(model.scheduling_delay_ms + max(delay, 0.0) * model.kernels) / ratio for model in models]
        ability = 1000 * batch / (predicted.gpu_ms - scheduling_ms)
        times = tuple(
            MeasuredTimes(
                100, float(predicted.load_ms[slot]), float(predicted.gpu_ms[slot]) * self._factor(),
                float(predicted.feedback_ms[slot]), 0.01 * float(predicted.gpu_ms[slot]), model.kernels,
                scheduling_ms[slot], model.alpha_cacheutil * float(ability[slot]) + model.beta_cacheutil,
            )
            for slot, model in enumerate(models)
        )  # fmt: skip
        power = min(float(predicted.power_w), gpu.max_power_w) if self._has_power else 0.0
        return MeasuredRun(tuple(loads), times, power, float(predicted.frequency_mhz))

    def _factor(self) -> float:
        return float(np.exp(self._noise * self._rng.standard_normal()))


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
