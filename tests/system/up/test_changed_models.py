"""A model whose files change under load: from READY on, every answer is of the new content, and none is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import STATE_VARIABLES

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "changed_models.py"


@pytest.mark.parametrize(
    "options",
    [
        "--changes 5 --runtime onnx --split --workers 2",
        "--changes 4 --runtime onnx --rotate",
        "--changes 3 --runtime python --split --workers 2 --unload",
    ],
)
def test_no_answer_is_of_an_earlier_content_and_none_is_lost(tmp_path: Path, options: str) -> None:
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
