"""NVIDIA's load generator `perf_analyzer` runs against the HTTP server and prints its report."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from harness.running_up import Up

MODELS = Path(__file__).parents[3] / "models"
REQUESTS = 100


@pytest.mark.parametrize("rows", [1, 4])
def test_perf_analyzer_reports_every_request(tmp_path: Path, rows: int) -> None:
    binary = shutil.which("perf_analyzer")
    if binary is None:
        pytest.skip("perf_analyzer is not on the PATH (see docs/http.md)")
    shutil.copytree(MODELS / "noop", tmp_path / "models" / "noop", ignore=shutil.ignore_patterns("model.toml"))
    up = Up(tmp_path, "--no-profiler", "--metrics", "off")
    try:
        address = up.ready["http"].removeprefix("http://")
        options = ["--request-count", str(REQUESTS), "--concurrency-range", "2", "-b", str(rows)]
        command = [binary, "-m", "noop", "-u", address, *options]
        result = subprocess.run(command, capture_output=True, text=True, timeout=50)
        (stats,) = json.loads(up.get(f"{up.ready['http']}/v2/models/noop/stats")[1])["model_stats"]
    finally:
        up.stop(signal.SIGTERM)
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"queue \d+ usec \+ compute input 0 usec \+ compute infer \d+ usec", result.stdout)
    counts = {part: stats["inference_stats"][f"compute_{part}"]["count"] for part in ("input", "infer", "output")}
    assert set(counts.values()) == {stats["inference_stats"]["success"]["count"]}
    assert stats["inference_count"] == rows * counts["infer"] >= rows * REQUESTS
