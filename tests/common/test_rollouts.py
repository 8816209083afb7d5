"""Rollouts: the changes that an operator makes, and the versions that requests reach."""

from __future__ import annotations

import pytest

from harness.builders import a_spec
from horologe_common.rollouts import Rollout, reached_versions
from horologe_common.status import InvalidInput
from horologe_common.wire import ModelState


def test_a_rollback_undoes_a_promotion_and_the_next_one_repeats_it() -> None:
    promoted = Rollout("1").promote("2")
    assert promoted == Rollout("2", "1", pinned=True)
    assert promoted.promote("2") == promoted
    assert promoted.roll_back() == Rollout("1", "2", pinned=True)
    assert promoted.roll_back().roll_back() == promoted


def test_a_rollback_ends_a_canary_first() -> None:
    canary = Rollout("2", "1", pinned=True).start_canary("3", 0.1)
    assert [canary.traffic(version, canary_ready=True) for version in "123"] == [0.0, 0.9, 0.1]
    assert [canary.traffic(version, canary_ready=False) for version in "123"] == [0.0, 1.0, 0.0]
    assert canary.roll_back() == Rollout("2", "1", pinned=True) == canary.start_canary("3", 0)
    assert canary.promote("3") == Rollout("3", "2", pinned=True)
    with pytest.raises(InvalidInput, match="no earlier version"):
        Rollout("1").roll_back()


@pytest.mark.parametrize(
    ("states", "reached"),
    [
        ((("READY", 0.0), ("READY", 0.0)), [2]),
        ((("READY", 0.0), ("LOADING", 0.0)), [1]),
        ((("UNAVAILABLE", 0.0), ("LOADING", 0.0)), [2]),
        ((("UNAVAILABLE", 0.0),), []),
        ((("READY", 0.75), ("READY", 0.25)), [1, 2]),
        ((("READY", 0.0), ("UNAVAILABLE", 1.0)), [2]),
    ],
)
def test_reached_versions(states: tuple[tuple[str, float], ...], reached: list[int]) -> None:
    versions = [
        ModelState(a_spec("sum", str(number)), state, "", traffic) for number, (state, traffic) in enumerate(states, 1)
    ]
    assert [int(state.spec.version) for state in reached_versions(versions)] == reached
