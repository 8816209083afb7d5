"""`horologe measure` with real processes, emulated and on the CPU, and plans of shares with its file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.model_folders import SIGNATURE, a_folder, an_onnx_model
from horologe_common.interference.v100 import CALIBRATED
from horologe_planning.interference.coefficients_file import read_coefficients, read_measurements

pytestmark = pytest.mark.alone

ROOT = Path(__file__).resolve().parents[3]
MANIFEST = 'runtime = "emulated"\nbatch_sizes = [1, 4, 8]\n'
SHARING = '[emulated]\n[emulated.sharing]\nmodel = "{}"\nnoise = false\n'
WORKLOADS = """
[gpu.v100]
coefficients = "out.json"
[[workload]]
model = "vgg19"
rate = 20
slo = "200ms"
"""


def horologe(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("HOROLOGE_")}
    command = [sys.executable, "-m", "horologe_cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=cwd, env=env)


def measure(*arguments: str, cwd: Path) -> dict[str, Any]:
    result = horologe(
        "measure", "--interference", *arguments, "--repository", "models", "-o", "out.json", "--json", cwd=cwd
    )
    assert result.returncode == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_an_emulated_device_has_the_coefficients_that_it_declares(tmp_path: Path) -> None:
    a_folder(tmp_path / "models", "vgg19", MANIFEST + SIGNATURE + SHARING.format("vgg19"))
    options = ("vgg19", "--device", "emulated", "--name", "v100", "--seconds", "0.2", "--price", "3.06")
    document = measure(*options, cwd=tmp_path)
    assert not document["failed"]
    content, truth = read_coefficients(tmp_path / "out.json"), CALIBRATED
    [model] = content.models
    assert model.kernels == truth.models["vgg19"].kernels
    assert model.scheduling_delay_ms == pytest.approx(truth.models["vgg19"].scheduling_delay_ms, rel=0.3)
    assert content.gpu.max_power_w == truth.gpu.max_power_w
    assert content.gpu.scheduling_slope_ms == pytest.approx(truth.gpu.scheduling_slope_ms, rel=0.3)
    assert content.origin is not None
    assert (content.origin.mechanism, content.origin.runs) == ("emulated", 11 + 5)
    assert document["coefficients"]["deviations"]["vgg19"]["k2"] > 0

    stored = (tmp_path / "out.runs.json").stat().st_mtime_ns
    runs = read_measurements(tmp_path / "out.runs.json").runs
    assert measure(*options, cwd=tmp_path)["coefficients"] == document["coefficients"]  # no run is repeated
    assert read_measurements(tmp_path / "out.runs.json").runs == runs
    assert (tmp_path / "out.runs.json").stat().st_mtime_ns >= stored

    (tmp_path / "workloads.toml").write_text(WORKLOADS)
    planned = horologe("plan", "make", "workloads.toml", "--json", cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["report"]["workloads"]["sharing"]["cost_per_hour"] == pytest.approx(3.06)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU has no shares")
def test_the_cpu_is_measured_by_the_same_command(tmp_path: Path) -> None:
    (tmp_path / "models").symlink_to(ROOT / "models")
    core = 100 / len(os.sched_getaffinity(0))
    assumed = (
        "k1", "k4", "k5", "k6", "alpha_cache", "alpha_cacheutil", "beta_cacheutil", "scheduling_slope_ms",
        "scheduling_offset_ms",
    )  # fmt: skip
    document = measure(
        "digits-cnn", "--device", "cpu", "--shares", f"{core},{2 * core}", "--copies", "2", "--seconds", "0.05",
        *(part for name in assumed for part in ("--assume", f"{name}=0")), cwd=tmp_path,
    )  # fmt: skip
    coefficients = document["coefficients"]
    assert not document["failed"]
    assert coefficients["assumed"]["frequency_slope"] == "the device has no power sensor"
    assert coefficients["models"][0]["alpha_power"] == 0
    assert coefficients["origin"]["cache_source"] == "estimated"
    assert read_measurements(tmp_path / "out.runs.json").runs[0].times[0].kernels >= 1


def test_a_machine_without_a_gpu_says_so(tmp_path: Path) -> None:
    an_onnx_model(tmp_path / "models")
    result = horologe("measure", "--interference", "graph", "--repository", "models", cwd=tmp_path)
    assert result.returncode == 1
    assert "NVML: " in result.stderr
    assert "--no-power" in result.stderr
