"""Limit of open queries: it shrinks once per round trip if queries are wasted, and grows while it is used."""

from __future__ import annotations

from horologe_selector.core.pipelines.open_limit import OpenLimit


def test_without_waste_there_is_no_limit() -> None:
    limit = OpenLimit(1000)
    for _ in range(100):
        limit.on_answered(999)
    assert limit.admits(999)
    assert not limit.admits(1000)


def test_a_wasted_query_shrinks_the_limit_once_per_round_trip() -> None:
    limit = OpenLimit(1000)
    for begin_ns in (10, 20, 30):
        limit.on_wasted(100, begin_ns, 49)
    assert not limit.admits(45)
    assert limit.admits(44)
    limit.on_wasted(200, 100, 44)
    assert not limit.admits(41)


def test_the_limit_grows_only_while_it_is_used_and_never_below_one() -> None:
    limit = OpenLimit(1000)
    limit.on_wasted(100, 10, 9)
    for _ in range(100):
        limit.on_answered(3)
    assert not limit.admits(9)
    for _ in range(100):
        limit.on_answered(9)
    assert limit.admits(9)
    for time in range(200, 400):
        limit.on_wasted(time, time, 0)
    assert limit.admits(0)
