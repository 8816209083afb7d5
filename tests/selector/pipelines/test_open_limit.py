"""Limit of open queries: it shrinks with each wasted query, and grows while it is used."""

from __future__ import annotations

from horologe_selector.core.pipelines.pipeline_registry import RUNS_MAX, OpenLimit


def test_without_waste_there_is_no_limit() -> None:
    limit = OpenLimit()
    for _ in range(100):
        limit.on_answered(999)
    assert limit.admits(RUNS_MAX - 1)


def test_the_limit_shrinks_in_proportion_to_the_waste() -> None:
    limit = OpenLimit()
    for _ in range(20):
        limit.on_wasted(50)
    assert not limit.admits(45)
    assert limit.admits(44)


def test_the_limit_grows_only_while_it_is_used_and_never_below_one() -> None:
    limit = OpenLimit()
    for _ in range(4):
        limit.on_wasted(10)
    for _ in range(100):
        limit.on_answered(3)
    assert not limit.admits(9)
    for _ in range(100):
        limit.on_answered(9)
    assert limit.admits(9)
    for _ in range(200):
        limit.on_wasted(1)
    assert limit.admits(0)
