"""schemathesis sends made-up requests to a running system: every answer is one of the OpenAPI document.

At the end, its key is replaced without a restart.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from fakes.key_entries import keys_of, write_keys
from harness.http_calls import send_http
from harness.model_folders import a_python_model
from harness.running_up import Up
from harness.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = 10
MANAGER = {"Authorization": "Bearer manager"}
SETTINGS = """
request-timeout = 30.0

[parameters]
"path.model" = "echo"
"path.version" = "1"
"path.application" = "mean"

# These stay, whatever is unloaded and deleted.
[[operations]]
include-operation-id-regex = "load"
parameters = { "path.model" = "spare" }

[[operations]]
include-operation-id-regex = "application_(declare|withdraw|rollback)"
parameters = { "path.application" = "spare" }

[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 501, 503, 504]

# Whether tensors fit a model is not in the document.
[checks.positive_data_acceptance]
enabled = false
"""


def test_answers_are_in_the_document(tmp_path: Path) -> None:
    pytest.importorskip("schemathesis", reason="schemathesis is not installed (the extra `dev`)")
    for name in ("echo", "spare"):
        a_python_model(tmp_path / "models", name=name)
    write_keys(tmp_path / "keys.toml", keys_of("manager"))
    (tmp_path / "schemathesis.toml").write_text(SETTINGS)
    up = Up(tmp_path, "--no-tuner", "--no-profiler", "--set", "http.keys_file=keys.toml")
    try:
        url = up.ready["http"]
        for name in ("mean", "spare"):
            body = json.dumps({"models": ["echo"], "task": "regression"}).encode()
            assert send_http("PUT", f"{url}/v1/applications/{name}", body, MANAGER)[0] == 200
        header = ": ".join(*MANAGER.items())
        options = ["--header", header, "--max-time", str(SECONDS), "--phases", "coverage,fuzzing", "--seed", "1"]
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/v2/openapi.json", *options]
        quiet = ["--no-shrink", "--no-color", "--continue-on-failure", "--generation-database", "none"]
        result = subprocess.run([*command, *quiet], cwd=tmp_path, capture_output=True, text=True, timeout=100)
        write_keys(tmp_path / "keys.toml", keys_of("rotated"))
        until(lambda: send_http("GET", f"{url}/v2", b"", MANAGER)[0] == 401)
        assert send_http("GET", f"{url}/v2", b"", {"Authorization": "Bearer rotated"})[0] == 200
        log = up.read_log()
    finally:
        assert up.stop(signal.SIGTERM) == 0
    assert result.returncode == 0, result.stdout + result.stderr
    generated = re.search(r"(\d+) generated, (\d+) passed", result.stdout)
    assert generated, result.stdout
    assert int(generated[1]) == int(generated[2]) > 0
    assert "internal error" not in log
