"""`horologe bench` against a running system, over HTTP, gRPC and the SDK."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

from harness.command_line import run_horologe
from harness.model_folders import a_python_model
from harness.running_up import Up

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECONDS = 0.3


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("up")
    a_python_model(folder / "models", name="echo")
    up = Up(folder, "--no-tuner", "--no-profiler")
    yield up
    assert up.stop(signal.SIGTERM) == 0


def bench(up: Up, kind: str, *options: str, code: int = 0) -> dict[str, Any]:
    endpoints = {"http": up.ready["http"], "grpc": f"grpc://{up.ready['grpc']}", "sdk": up.ready["clients"][0]}
    result = run_horologe("bench", "echo", "-e", endpoints[kind], "--json", *options)
    assert result.exit_code == code, result.stderr
    return dict(json.loads(result.stdout))


@pytest.mark.parametrize("kind", ["http", "grpc", "sdk"])
def test_an_open_loop_is_answered_over_every_protocol(up: Up, kind: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("".join(f"{5 + number / 100},echo\n{number},other\n" for number in range(30)))
    found = bench(up, kind, "--trace", str(trace), "--slo-ms", "20000", "--attainment", "1")
    summary = found["run"]["summary"]
    assert (summary["sent"], summary["in_time"]) == (30, 30)
    assert found["run"]["latency_ms"]["p50"]["value"] > 0


def test_two_processes_keep_the_clients_of_a_closed_loop_busy(up: Up) -> None:
    found = bench(up, "http", "--clients", "3", "--processes", "2", "--seconds", str(SECONDS))
    assert len(found["run"]["cpu"]) == 2
    assert found["run"]["summary"]["ok"] == found["run"]["summary"]["sent"] > 3


def test_a_deadline_that_cannot_be_met_fails_the_check(up: Up) -> None:
    options = "--rate", "50", "--seconds", str(SECONDS), "--slo-ms", "0.1", "--attainment", "0.5"
    found = bench(up, "grpc", *options, code=1)
    assert found["run"]["summary"]["in_time"] == 0
