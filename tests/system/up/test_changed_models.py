"""A model whose files change under load: from READY on, every answer is of the new content, and none is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from conftest import STATE_VARIABLES
from harness.model_folders import a_python_model
from harness.running_up import Up
from horologe import Client
from horologe_common.status import ModelFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "changed_models.py"


@pytest.mark.parametrize(
    "options",
    [
        "--changes 5 --runtime onnx --split --workers 2",
        "--changes 4 --runtime onnx --rotate",
        "--changes 3 --runtime python --split --workers 2 --unload",
        "--changes 4 --runtime pytorch",
        "--changes 5 --runtime emulated",
    ],
)
def test_no_answer_is_of_an_earlier_content_and_none_is_lost(tmp_path: Path, options: str) -> None:
    if "pytorch" in options:
        pytest.importorskip("torch", reason="PyTorch is not installed (the extra `torch`)")
    command = [sys.executable, str(SCRIPT), *options.split(), "--json", str(tmp_path / "result.json")]
    env = os.environ | dict.fromkeys(STATE_VARIABLES, str(tmp_path / "state"))
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True, cwd=tmp_path, env=env) as run:
        try:
            output, _ = run.communicate(timeout=100)
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGINT)  # it stops the system that it has started
            raise
    assert run.returncode == 0, output
    result = json.loads((tmp_path / "result.json").read_text())["result"]
    assert result["answers"] > result["changes"] > 0


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    a_python_model(tmp_path / "models")
    up = Up(tmp_path)
    yield up
    up.stop(signal.SIGINT)


def test_a_broken_model_leaves_the_content_before_until_it_is_mended(up: Up, tmp_path: Path) -> None:
    source = tmp_path / "models" / "code" / "1" / "model.py"
    x = np.ones((1, 4), np.float32)
    with Client(up.ready["clients"][0]) as client:
        before = client.predict_full("code", x, timeout=20, content_hash=True)
        source.write_text("raise RuntimeError('no licence')\n")
        with pytest.raises(ModelFailed, match=r"serves the content before: .*RuntimeError: no licence"):
            client.admit("code")
        (state,) = client.models("code")
        assert (state.state, state.spec.content_hash) == ("READY", before.content_hashes[0])
        assert "no licence" in state.reason
        assert client.predict_full("code", x, content_hash=True).content_hashes == before.content_hashes
        source.write_text("class Model:\n    def predict_batch(self, inputs):\n        return {'y': inputs['x'] * 3}\n")
        (state,) = client.admit("code")
        after = client.predict_full("code", x, content_hash=True)
        assert (after.value.tolist(), after.content_hashes) == ([[3, 3, 3, 3]], (state.spec.content_hash,))
        assert state.reason == ""
        assert client.predict_full("code", x).content_hashes == ()
