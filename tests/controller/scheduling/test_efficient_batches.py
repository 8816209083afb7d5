"""Batches are no larger than what saves device time."""

from __future__ import annotations

import pytest

from controller.desk import NOW, Desk
from horologe_common.clock import ms, us
from horologe_common.core.instruments import RollingQuantile
from horologe_controller.core.cluster.estimates import Estimate, efficient_sizes


@pytest.mark.parametrize(
    ("exec_ms", "efficient"),
    [
        ({1: 10, 2: 20, 4: 40, 8: 80}, {1}),
        ({1: 2.61, 2: 3.78, 4: 5.61, 8: 9.13, 16: 15.67}, {1, 2, 4, 8, 16}),
        ({1: 6.96, 2: 9.47, 4: 14.27, 8: 29.94, 16: 56.02}, {1, 2, 4, 16}),
        ({1: 10, 2: 19.9, 4: 39.4, 8: 78.0}, {1, 4}),
        ({1: 0.01, 2: 0.02, 4: 0.04}, {1, 2, 4}),
    ],
)
def test_sizes_that_save_time_per_row_are_efficient(exec_ms: dict[int, float], efficient: set[int]) -> None:
    assert efficient_sizes({0: ms(8), **{size: ms(time) for size, time in exec_ms.items()}}) == efficient


@pytest.mark.parametrize(("name", "rows"), [("horologe", [1, 1]), ("clockwork", [2])])
def test_requests_run_alone_if_a_batch_takes_as_long_as_they_do(name: str, rows: list[int]) -> None:
    desk = Desk(name, [("m",)])
    share = next(iter(desk.cluster.shares()))
    seed_ns = {size: ms(10) * size for size in desk.specs["m"].batch_sizes}
    share.estimates["m/1"] = Estimate({0: ms(1), **seed_ns}, RollingQuantile())
    desk.ask(NOW, 500)
    first, _ = desk.plan(NOW)
    desk.ask(NOW + us(10), 500)
    desk.ask(NOW + us(10), 500)
    desk.end(first[0], NOW + ms(10))
    later, _ = desk.plan(NOW + ms(10))
    now_ns = NOW + ms(10)
    while len(desk.scheduler):
        now_ns += ms(1)
        later += desk.plan(now_ns)[0]
    assert [len(action.requests) for action in later] == rows
