"""The examples of docs/sharing.md and docs/planning.md on real processes."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.running_up import Up
from horologe_planning.plan import parse_plans
from horologe_tuner.core.standby.share_workers import worker_name

if TYPE_CHECKING:
    from collections.abc import Callable

EXAMPLES = Path(__file__).parents[3] / "examples"
PATIENCE_S = 100.0


def wait_for(what: str, check: Callable[[], Any]) -> Any:
    """Return the first result of `check` that is true. A command that fails counts as false."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        try:
            if result := check():
                return result
        except (AssertionError, subprocess.TimeoutExpired):
            pass
        time.sleep(0.5)
    pytest.fail(f"{what} within {PATIENCE_S:g} s")


def is_connected(up: Up, worker: str) -> bool:
    """Return whether the controller has a worker whose address starts with this text."""
    return worker in json.dumps(up.ask("status"))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_sharing_example_is_planned_applied_and_served_by_its_shares(tmp_path: Path) -> None:
    folders = {name: str(tmp_path / name) for name in ("HOROLOGE_WORKER_CACHE", "HOROLOGE_PROFILER_STATE")}
    up = Up(tmp_path, "--models", str(EXAMPLES / "sharing" / "models"), "--no-profiler", **folders)
    try:
        workloads = str(EXAMPLES / "sharing" / "workloads.toml")
        document = wait_for("a tuner", lambda: up.ask("plan", "make", workloads, "--apply"))
        plans = parse_plans(json.dumps(document))
        planned = [(share.model, f"worker/{worker_name(share)}#") for plan in plans for share in plan.shares]
        for model, worker in planned:
            wait_for(f"worker {worker}", partial(is_connected, up, worker))
            wait_for(f"an answer of {model}", partial(up.ask, "predict", model, "--input", "[[1.0]]"))
        status = up.ask("plan", "status")
        assert {plan["name"] for plan in status["plans"]} == {model for model, _ in planned}
    finally:
        up.stop(signal.SIGTERM)


def test_the_pipeline_of_the_planning_example_answers(tmp_path: Path) -> None:
    up = Up(
        tmp_path,
        "--models",
        str(EXAMPLES / "planning" / "models"),
        "--no-profiler",
        HOROLOGE_WORKER_CACHE=str(tmp_path),
    )
    try:
        answer = wait_for("an answer", lambda: up.ask("predict", "plates", "--input", "[[1.0]]"))
        assert answer["outputs"]
        structure = up.ask("pipeline", "show", "plates")["structure"]
        assert [stage["model"] for stage in structure["stages"]] == ["detect", "read"]
    finally:
        up.stop(signal.SIGTERM)
