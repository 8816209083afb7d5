"""The examples of docs/sharing.md and docs/planning.md on real processes."""

from __future__ import annotations

import json
import signal
import subprocess
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.running_up import Up
from harness.waiting import until
from horologe_planning.plan import parse_plans
from horologe_tuner.core.standby.share_workers import worker_name

if TYPE_CHECKING:
    from collections.abc import Callable

EXAMPLES = Path(__file__).parents[3] / "examples"
PATIENCE_S = 100.0


def wait_for(check: Callable[[], Any]) -> Any:
    """Return the first result of `check` that is true. A command that fails counts as false."""
    return until(check, PATIENCE_S, (AssertionError, subprocess.TimeoutExpired), 0.5)


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
        document = wait_for(lambda: up.ask("plan", "make", workloads, "--apply"))
        plans = parse_plans(json.dumps(document))
        planned = [(share.model, f"worker/{worker_name(share)}#") for plan in plans for share in plan.shares]
        for model, worker in planned:
            wait_for(partial(is_connected, up, worker))
            wait_for(partial(up.ask, "predict", model, "--input", "[[1.0]]"))
        status = up.ask("plan", "status")
        assert {plan["name"] for plan in status["plans"]} == {model for model, _ in planned}
    finally:
        up.stop(signal.SIGTERM)


def test_the_pipeline_of_the_planning_example_answers(tmp_path: Path) -> None:
    models = str(EXAMPLES / "planning" / "models")
    up = Up(tmp_path, "--models", models, "--no-profiler", HOROLOGE_WORKER_CACHE=str(tmp_path))
    try:
        answer = wait_for(lambda: up.ask("predict", "plates", "--input", "[[1.0]]"))
        assert answer["outputs"]
        structure = up.ask("pipeline", "show", "plates")["structure"]
        assert [stage["model"] for stage in structure["stages"]] == ["detect", "read"]
    finally:
        up.stop(signal.SIGTERM)
