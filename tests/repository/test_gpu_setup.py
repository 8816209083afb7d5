"""CUDA is installed on request only, and the whole server runs on an emulated CUDA device."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("extra", ["dev", "server"])
def test_no_target_but_cuda_installs_cuda(extra: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted, packages = [extra], []
    while wanted:
        for line in extras[wanted.pop()]:
            if ours := re.fullmatch(r"horologe\[(.+)\]", line):
                wanted += ours[1].split(",")
            packages.append(line)
    assert not [line for line in packages if re.match(r"torch\b|onnxruntime-gpu|nvidia-(?!ml-py)", line)]


@pytest.mark.timeout(180)
def test_three_kinds_of_models_are_served_by_a_cuda_worker(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed (the extra `torch`)")
    out = tmp_path / "product.json"
    options = ["--cpu", "--shares", "50", "--slos", "2000", "--seconds", "0.5", "--json", out]
    command = [sys.executable, ROOT / "benchmarks/gpu_product.py", *options]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert [row["case"] for row in rows] == [f"{name}, SLO 2000 ms" for name in ("resnet50", "transformer", "python")]
    assert all(row["notes"]["in time/s"] > 0 and not row["notes"]["failed"] for row in rows)
