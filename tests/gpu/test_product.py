"""The whole server on a real CUDA device. It needs the environment of `make cuda`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (the extra `torch`)")
for package in ("zmq", "uvloop", "httptools", "typer"):
    pytest.importorskip(package, reason=f"{package} is not installed (`make cuda`)")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

pytestmark = pytest.mark.gpu


def test_three_kinds_of_models_are_served(tmp_path: Path) -> None:
    out, script = tmp_path / "product.json", Path(__file__).resolve().parents[2] / "benchmarks/gpu_product.py"
    options = ["--shares", "100", "--slos", "250", "--seconds", "2", "--json", str(out)]
    done = subprocess.run([sys.executable, str(script), *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for row in json.loads(out.read_text())["rows"]:
        assert row["notes"]["in time/s"] > 0, row
