"""The measurement plan of igniter-cpu with pretended times, and the probe."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from horologe_experiments.harness.experiment import load_scene
from horologe_experiments.igniter.cpu_interference import Load
from horologe_experiments.igniter.igniter_cpu import COMPANION, PROBE, Scene, measure_all, write_probe
from horologe_gpu_worker.runtimes import RUNTIMES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


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
