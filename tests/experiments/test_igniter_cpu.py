"""Interference on a CPU: coefficients come back from times that follow the model; measurements; the probe."""

from __future__ import annotations

from itertools import combinations, product
from typing import TYPE_CHECKING

import numpy as np
import pytest

from horologe_experiments.harness.experiment import load_scene
from horologe_experiments.igniter.cpu_interference import Load, ProbeRuns, fit_cpu, predict_pair
from horologe_experiments.igniter.igniter_cpu import COMPANION, PROBE, Scene, measure_all, write_probe
from horologe_gpu_worker.runtimes import RUNTIMES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


SENSITIVITY = {"probe": 0.004, "mlp": 0.002, "cnn": 0.0005}
"""Growth of the time per percent of the neighbour's utilisation."""
BATCHES = (1, 4, 16)
PROBE_ALONE_MS = 20.0


def alone_ms(load: Load) -> float:
    return {"mlp": 0.5 + 0.2 * load.batch, "cnn": 1.0 + 2.0 * load.batch + 0.01 * load.batch**2}[load.model]


def percent(load: Load) -> float:
    ability = 1000 * load.batch / alone_ms(load)
    return {"mlp": 5 + 0.004 * ability, "cnn": 1 + 0.01 * ability}[load.model]


def beside_ms(load: Load, other_percent: float) -> float:
    return alone_ms(load) * (1 + SENSITIVITY[load.model] * other_percent)


def model_runs() -> ProbeRuns:
    loads = [Load(model, batch) for model in ("mlp", "cnn") for batch in BATCHES]
    probe_percent = 50.0
    probe_copy = PROBE_ALONE_MS * 1.5
    return ProbeRuns(
        {load: alone_ms(load) for load in loads},
        {load: beside_ms(load, probe_percent) for load in loads},
        PROBE_ALONE_MS,
        {load: PROBE_ALONE_MS * (1 + percent(load) / 100) for load in loads},
        probe_copy,
    )


def test_pairs_are_predicted_from_runs_beside_the_probe() -> None:
    coefficients = fit_cpu(model_runs())
    for first, second in combinations([Load(*load) for load in product(("mlp", "cnn"), BATCHES)], 2):
        growth = predict_pair(coefficients, (first, second))
        assert growth[0] == pytest.approx(1 + SENSITIVITY[first.model] * percent(second), rel=1e-6)
        assert growth[1] == pytest.approx(1 + SENSITIVITY[second.model] * percent(first), rel=1e-6)


def test_missing_runs_and_a_probe_that_disturbs_nothing_are_named() -> None:
    runs = model_runs()
    few = {load: time_ms for load, time_ms in runs.alone.items() if load != Load("cnn", 16)}
    with pytest.raises(ValueError, match="cnn: got 2 runs alone and 2 beside the probe, wanted at least 3 and 2"):
        fit_cpu(runs._replace(alone=few))
    with pytest.raises(ValueError, match=r"probe: got 0\.0% growth beside its copy"):
        fit_cpu(runs._replace(probe_copy=PROBE_ALONE_MS))


def test_every_model_runs_alone_beside_the_probe_and_in_pairs() -> None:
    scene = load_scene("igniter-cpu", Scene, False, {})
    measured: list[tuple[Load, ...]] = []

    def measure(loads: Sequence[Load]) -> list[float]:
        measured.append(tuple(loads))
        return [10.0 * number + len(loads) for number, _ in enumerate(loads)]

    runs, pairs = measure_all(scene, measure, lambda completed, label: None)
    assert len(set(measured)) == len(measured)
    assert {load.model for load in runs.alone} == set(scene.models)
    assert set(runs.beside_probe) == set(runs.probe_beside) == set(runs.alone)
    assert all(runs.probe_beside[load] == 12.0 for load in runs.alone)
    models = {frozenset(load.model for load in pair) for pair, _ in pairs}
    assert len(models) == len(scene.models) * (len(scene.models) - 1) / 2
    assert not any(PROBE in pair or COMPANION in pair for pair, _ in pairs)
    seconds = len(measured) * 2.5 * scene.seconds  # a run takes a second and a half, and about one to start and trace
    assert seconds < 240


def test_the_probe_runs(tmp_path: Path) -> None:
    folder = write_probe(tmp_path, "probe", 16 << 20)
    runtime = RUNTIMES["onnx"]()
    model = runtime.open(runtime.inspect(folder), folder)
    y = model.run(1, {"x": np.full((1, 1), 2.0, np.float32)})["y"]
    assert y.shape == (1, 1)
    assert y[0, 0] == 2 + 2 * (16 << 17)
    model.close()
