"""Interference on this machine's CPU, really measured: models alone and in pairs on two cores, and its prediction."""

from __future__ import annotations

import os
import shutil
import tempfile
from itertools import combinations, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from horologe_cli.local.topology import default_repository
from horologe_common.interference.measured_runs import ShareLoad
from horologe_common.service.settings import SettingsError
from horologe_experiments.harness.experiment import Bar, Findings, load_scene
from horologe_experiments.igniter.cpu_interference import CORE_PERCENT, Load, ProbeRuns, fit_cpu, predict_pair
from horologe_experiments.live.local_services import benchmark_model, describe_machine
from horologe_gpu_worker.measurement.device_bench import BenchSettings, DeviceBench
from horologe_gpu_worker.measurement.device_sensors import HostSensor
from horologe_gpu_worker.settings import WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from matplotlib.figure import Figure

    from horologe_common.interference.coefficients import ModelCoefficients
    from horologe_experiments.harness.experiment import Progress

    Measure = Callable[[Sequence[Load]], list[float]]
    """Run loads at the same time, each on a core of its own. Return the mean time of a batch of each in ms."""

PROBE = Load("probe", 1)
COMPANION = Load("companion", 1)
"""Runs beside what is measured alone, and uses neither shared cache nor memory bandwidth. A core whose neighbour idles
has another clock and other wake-up times: without it, models are up to a fifth faster in pairs than alone."""
COMPANION_BYTES = 16 << 10


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scene file of igniter-cpu."""

    description: str
    models: tuple[str, ...]
    """Models of `models/` or `benchmarks/models/`."""
    batches: tuple[int, ...]
    """Batch sizes of the runs alone and beside the probe."""
    pair_batches: tuple[int, ...]
    """Batch sizes of the pairs."""
    probe_mib: int
    """Memory that a batch of the probe goes through. Half of the L3 cache: it fits alone, and not beside its copy."""
    seconds: float
    """Length of a run."""


class IgniterCpu:
    """Predicted and measured times of pairs of real models on two cores. No pair is used for the fit."""

    name = "igniter-cpu"
    title = "Interference on this machine's CPU: pairs of real models, predicted from runs beside a probe"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`. Raises SettingsError unless two CPUs may be used and the probe disturbs."""
        scene = load_scene(self.name, Scene, quick, changes)
        if (cpus := len(os.sched_getaffinity(0))) != 2:
            raise SettingsError(f"{self.name}: got {cpus} CPUs, wanted 2: taskset -c 0,1 horologe experiment ...")
        with tempfile.TemporaryDirectory() as folder:
            folders = {name: _copy_model(Path(folder), name, scene.batches) for name in scene.models}
            folders[PROBE.model] = write_probe(Path(folder), PROBE.model, scene.probe_mib << 20)
            folders[COMPANION.model] = write_probe(Path(folder), COMPANION.model, COMPANION_BYTES)
            worker = WorkerSettings(cache=folder, share_mechanism="cpu")
            bench = DeviceBench(BenchSettings(folders, worker, scene.seconds), HostSensor())

            def measure(loads: Sequence[Load]) -> list[float]:
                run = bench.run([ShareLoad(load.model, load.batch, CORE_PERCENT) for load in loads])
                return [times.gpu_ms for times in run.times]

            try:
                runs, pairs = measure_all(scene, measure, progress)
            finally:
                bench.close()
        try:
            coefficients = fit_cpu(runs)
        except ValueError as error:
            hint = f"probe_mib was {scene.probe_mib}. With a large cache, a larger probe disturbs: --set probe_mib=256"
            raise SettingsError(f"{self.name}: {error}; {hint}") from error
        rows = [row for pair, times_ms in pairs for row in _pair_rows(pair, times_ms, runs, coefficients)]
        facts = {
            "machine": describe_machine(),
            "shares": "one core each; a run is batch after batch on both cores",
            "fit": "times alone, beside a companion that stays in its core's own cache, and beside a probe that "
            "streams through memory; pairs of the models are not used",
            "probe": f"{100 * (runs.probe_copy / runs.probe_alone - 1):.1f}% slower beside its copy",
        }
        series = {"coefficients": [_coefficient_row(model) for model in coefficients.values()]}
        return Findings(self.name, self.title, seed, quick, facts, rows, _bars(rows), series)

    def draw(self, findings: Findings) -> Figure:
        """Draw the predicted over the measured growth of each side of each pair."""
        from horologe_experiments.harness.plots import make_figure

        figure, (panel,) = make_figure(1, 1)
        for model in dict.fromkeys(row["model"] for row in findings.rows):
            own = [row for row in findings.rows if row["model"] == model]
            panel.plot([row["growth"] for row in own], [row["predicted_growth"] for row in own], "o", ms=4, label=model)
        ends = [0.95, max(1.05, *(max(row["growth"], row["predicted_growth"]) for row in findings.rows))]
        panel.plot(ends, ends, "k--", lw=0.8)
        panel.set(xlabel="measured time beside the neighbour / alone", ylabel="predicted")
        panel.legend(fontsize=7)
        return figure


def measure_all(
    scene: Scene, measure: Measure, progress: Progress
) -> tuple[ProbeRuns, list[tuple[tuple[Load, Load], list[float]]]]:
    """Return the runs of the fit, and the pairs with the measured times of both sides."""
    loads = [Load(model, batch) for model in scene.models for batch in scene.batches]
    pairs = [
        (Load(first, own), Load(second, other))
        for first, second in combinations(scene.models, 2)
        for own, other in product(scene.pair_batches, repeat=2)
    ]
    sets: list[tuple[Load, ...]] = [(PROBE, COMPANION), (PROBE, PROBE)]
    sets += [(load, COMPANION) for load in loads] + [(load, PROBE) for load in loads] + list(pairs)
    times: dict[tuple[Load, ...], list[float]] = {}
    for number, together in enumerate(sets):
        progress(number / len(sets), " beside ".join(f"{load.model} x{load.batch}" for load in together))
        times[together] = measure(together)
    runs = ProbeRuns(
        {load: times[load, COMPANION][0] for load in loads},
        {load: times[load, PROBE][0] for load in loads},
        times[PROBE, COMPANION][0],
        {load: times[load, PROBE][1] for load in loads},
        sum(times[PROBE, PROBE]) / 2,
    )
    return runs, [(pair, times[pair]) for pair in pairs]


def write_probe(repository: Path, name: str, size_bytes: int) -> Path:
    """Write a model that adds up a constant times its input, and return its folder. Needs the package onnx.

    Constant and product take `size_bytes` together.
    """
    from onnx import TensorProto, helper, numpy_helper

    tensor = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 1]) for name in ("x", "y")}
    size = numpy_helper.from_array(np.array([size_bytes // 8], np.int64), "size")
    one = helper.make_tensor("value", TensorProto.FLOAT, [1], [1.0])
    nodes = [
        helper.make_node("ConstantOfShape", ["size"], ["large"], value=one),
        helper.make_node("ReduceMean", ["x"], ["factor"], keepdims=0),
        helper.make_node("Mul", ["large", "factor"], ["product"]),
        helper.make_node("ReduceSum", ["product"], ["sum"], keepdims=0),
        helper.make_node("Add", ["x", "sum"], ["y"]),
    ]
    graph = helper.make_graph(nodes, name, [tensor["x"]], [tensor["y"]], [size])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    (folder / "model.toml").write_text("batch_sizes = [1]\n")
    return folder


def _copy_model(repository: Path, name: str, batches: Sequence[int]) -> Path:
    """Copy an ONNX model with these batch sizes, and return its folder."""
    source = Path(default_repository()) / name / "1"
    source = source if source.is_dir() else benchmark_model(name) / "1"
    if not (source / "model.onnx").is_file():
        raise SettingsError(f"models: got {name!r}, wanted an ONNX model")
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    shutil.copy(source / "model.onnx", folder)
    (folder / "model.toml").write_text(f"batch_sizes = {sorted(batches)}\n")
    return folder


def _pair_rows(
    pair: tuple[Load, Load], times_ms: Sequence[float], runs: ProbeRuns, coefficients: Mapping[str, ModelCoefficients]
) -> list[dict[str, Any]]:
    rows = []
    for side, predicted in enumerate(predict_pair(coefficients, pair)):
        own, other = pair[side], pair[1 - side]
        growth = times_ms[side] / runs.alone[own]
        rows.append({
            "model": own.model, "batch": own.batch, "beside": other.model, "its batch": other.batch,
            "alone_ms": round(runs.alone[own], 3), "beside_ms": round(times_ms[side], 3), "growth": round(growth, 3),
            "predicted_growth": round(predicted, 3), "error_percent": round(100 * abs(predicted / growth - 1), 1),
            "ignored_percent": round(100 * abs(1 / growth - 1), 1),
        })  # fmt: skip
    return rows


def _coefficient_row(model: ModelCoefficients) -> dict[str, Any]:
    return {
        "model": model.model, "alpha_cache": round(model.alpha_cache, 5),
        "alpha_cacheutil": round(model.alpha_cacheutil, 5), "beta_cacheutil": round(model.beta_cacheutil, 2),
    }  # fmt: skip


def _bars(rows: Sequence[Mapping[str, Any]]) -> list[Bar]:
    errors = np.array([row["error_percent"] for row in rows])
    ignored = np.array([row["ignored_percent"] for row in rows])
    return [
        Bar("mean error of the pairs, %", round(float(errors.mean()), 2), 5, "at most"),
        Bar("P95 of the error, %", round(float(np.quantile(errors, 0.95)), 2), 12, "at most"),
        Bar("mean error / mean error without a model", round(float(errors.mean() / max(ignored.mean(), 0.01)), 2), 1,
            "at most"),
    ]  # fmt: skip
