"""Containers that are killed, paused, restarted and added under load: every request has one answer, and a right one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import container_faults
from compose.stack import WORKERS, wait_until
from container_faults import measure

if TYPE_CHECKING:
    from compose.stack import Stack
    from horologe import Client

pytestmark = [pytest.mark.compose, pytest.mark.slow, pytest.mark.timeout(300)]

RATE, SECONDS, EVERY_S = 30.0, 36.0, 6.0


def test_three_workers_just_work_under_load(stack: Stack, client: Client) -> None:
    stack.scale_workers(3)
    wait_until("three healthy workers", 60, lambda: len(stack.containers(WORKERS)) == 3 and stack.is_healthy(WORKERS))
    wait_until("three workers at the controller", 60, lambda: len(_workers(client)) == 3)


def _workers(client: Client) -> set[str]:
    return {share.worker for share in client.describe().shares}


def test_faults_of_containers_lose_no_request(stack: Stack, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound of the goodput is left to the benchmark: it depends on the speed of the machine."""
    monkeypatch.setattr(container_faults, "BEFORE_S", 5.0)
    monkeypatch.setattr(container_faults, "SETTLE_S", 8.0)
    result = measure(stack, "digits-mlp", RATE, 0.0, SECONDS, EVERY_S, seed=3)
    violations = {name: count for name, count in result["violations"].items() if name != "goodput"}
    assert not any(violations.values()), result
    assert sum(result["faults"].values()) >= 3
    assert len({fault.partition(" ")[0] for fault in result["faults"]}) == 3, "all kinds of faults"
    assert result["statuses"]["OK"] > 0.5 * result["requests"], result
    assert result["http"]["200"] > 0
    stack.wait_healthy()
    stack.scale_workers(1)
