"""Where devices are idle, the rows of a queue run on several at once."""

from __future__ import annotations

import pytest

from controller.desk import NOW, Desk
from horologe_common.clock import ms
from horologe_controller.schedulers.horologe import Horologe


def batches(rows: int, lost_ms: int | None = None, shares: int = 4) -> list[int]:
    """Return the rows of the batches for idle shares. `lost_ms`: time since a request was lost."""
    desk = Desk("horologe", [("m",)] * shares)
    for _ in range(rows):
        desk.ask(NOW, 100)
    policy = desk.scheduler.policy
    assert isinstance(policy, Horologe)
    policy.traffic.lost_ns = None if lost_ms is None else NOW - ms(lost_ms)
    return [len(action.requests) for action in desk.plan(NOW)[0]]


@pytest.mark.parametrize(("rows", "split"), [(1, [1]), (4, [1, 1, 1, 1]), (6, [2, 1, 1, 1]), (8, [2, 2, 1, 1])])
def test_idle_shares_divide_the_rows_of_a_queue(rows: int, split: list[int]) -> None:
    """What is left when all have a batch goes next."""
    assert batches(rows) == split


def test_one_share_takes_all_rows_after_a_loss() -> None:
    assert batches(8, lost_ms=99)[0] == 8
    assert batches(8, lost_ms=101)[0] == 2


def test_a_batch_is_never_larger_than_the_largest_size() -> None:
    assert batches(100)[0] == 16


def test_a_share_alone_takes_all_rows() -> None:
    assert batches(8, shares=1) == [8]
