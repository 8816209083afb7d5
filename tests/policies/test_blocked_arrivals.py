"""A batch that would cost more requests than it serves does not run. A batch of "m" takes 1.5 + n / 2 ms."""

from __future__ import annotations

import pytest

from desk import NOW, Desk
from horologe_common.clock import ms

LONG_MS = 30


def long_requests(budget_ms: float, gap_ms: float = 10, holders: int = 1, requests: int = 1) -> tuple[Desk, int]:
    """Queue requests for a long model after many for a short one. Return the desk and the time."""
    desk = Desk("horologe", [("m", "long")] * holders, ("m", "long"), admission=False)
    for worker in desk.cluster.workers.values():
        worker.shares[0].estimates["long/1"].seed_ns = {0: ms(5)} | {size: ms(LONG_MS) for size in (1, 2, 4, 8, 16)}
    now_ns = NOW
    for _ in range(120):
        now_ns += ms(gap_ms)
        desk.ask(now_ns, budget_ms)
        for action in desk.plan(now_ns)[0]:
            desk.end(action, now_ns + ms(2))
    now_ns += ms(5)
    for _ in range(requests):
        desk.ask(now_ns, 500, model="long")
    return desk, now_ns


def test_a_long_batch_does_not_run_where_more_urgent_requests_would_arrive_and_be_late_meanwhile() -> None:
    desk, now_ns = long_requests(budget_ms=4)
    assert not desk.plan(now_ns)[0]


def test_it_runs_once_the_urgent_requests_have_stopped() -> None:
    desk, now_ns = long_requests(budget_ms=4)
    desk.plan(now_ns)
    while desk.wake_ns is not None and not (started := desk.plan(now_ns)[0]):
        now_ns = desk.wake_ns
    assert started
    assert not desk.refused


@pytest.mark.parametrize(
    "loses_less",
    [
        {"budget_ms": 50},
        {"budget_ms": 4, "gap_ms": 100},
        {"budget_ms": 4, "holders": 3},
        {"budget_ms": 4, "requests": 8},
    ],
    ids=["they can wait", "they are few", "other devices are idle", "the batch serves more"],
)
def test_it_runs_where_it_costs_less_than_it_serves(loses_less: dict[str, float]) -> None:
    desk, now_ns = long_requests(**loses_less)  # type: ignore[arg-type]
    assert desk.plan(now_ns)[0]
