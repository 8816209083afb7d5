"""Choice of a batch from distributions of execution times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horologe_common.clock import ms
from horologe_common.distribution import Distribution
from horologe_controller.core.runtime_distributions import RuntimeDistributions, SoloDistribution
from horologe_controller.core.scheduling import batch_value

BASE_NS, SIZES = ms(7), (1, 2, 4, 8)
NOW = ms(1000)


def fixed(*solo_ms: float) -> RuntimeDistributions:
    """Return distributions of applications "0", "1", ... with constant solo times."""
    return RuntimeDistributions(
        BASE_NS, [SoloDistribution(str(number), 0, Distribution.point(ms(took))) for number, took in enumerate(solo_ms)]
    )


def best(known: RuntimeDistributions, *waiting: tuple[str, float]) -> batch_value.BatchChoice | None:
    """Return the choice for queued requests (application, ms left), ascending."""
    return batch_value.choose_batch(
        NOW, [NOW + ms(left) for _, left in waiting], [known.kind_of(one, 0) for one, _ in waiting], SIZES, known
    )


def test_likes_go_with_likes() -> None:
    found = best(fixed(10, 40), ("1", 100), ("0", 100), ("1", 101), ("0", 101))
    assert found is not None
    assert (found.places, found.size) == ((1, 3), 2)
    assert found.expected_ns == pytest.approx(ms(7 + 2 * 3), rel=0.03)


def test_a_kind_with_slack_gives_way() -> None:
    found = best(fixed(10, 30), ("1", 32), ("0", 300), ("0", 300), ("0", 300))
    assert found is not None
    assert found.places == (0,)


def test_of_one_kind_the_urgent_are_worth_no_more_than_the_others() -> None:
    known = RuntimeDistributions(BASE_NS, [SoloDistribution("0", 0, Distribution.from_samples([ms(10), ms(60)]))])
    found = best(known, ("0", 30), ("0", 500))
    assert found is not None
    assert found.places == (1,), "surely in time before perhaps in time"


def test_all_the_time_in_the_world_is_no_reason_to_wait() -> None:
    found = best(fixed(10, 40), ("0", 1e6), ("0", 1e6), ("1", 3e6))
    assert found is not None
    assert found.places == (0, 1)


def test_a_request_that_cannot_be_in_time_is_not_chosen() -> None:
    assert best(fixed(10, 30), ("1", 20), ("1", 25)) is None
    found = best(fixed(10, 30), ("1", 20), ("0", 20))
    assert found is not None
    assert found.places == (1,)


def test_a_gamble_is_taken_where_it_pays() -> None:
    known = RuntimeDistributions(
        BASE_NS, [SoloDistribution("0", 0, Distribution.from_samples([ms(10)] * 3 + [ms(60)]))]
    )
    alone = best(known, ("0", 30))
    assert alone is not None
    assert alone.size == 1
    assert alone.least_ns == pytest.approx(ms(10), rel=0.05)


LEFT = st.lists(st.tuples(st.sampled_from("012"), st.floats(1, 200)), max_size=30)


@given(LEFT)
def test_a_batch_is_one_that_could_be_run(waiting: list[tuple[str, float]]) -> None:
    solo_ms = {"0": 8, "1": 20, "2": 45}
    waiting = sorted(waiting, key=lambda one: one[1])
    found = best(fixed(*solo_ms.values()), *waiting)
    able = [one for one, left in waiting if left > solo_ms[one] * 1.05]
    assert found is not None or not able
    if found is None:
        return
    assert list(found.places) == sorted(set(found.places))
    assert found.size in SIZES
    assert found.size // 2 < len(found.places) <= found.size or found.size == 1
    longest = max(solo_ms[waiting[place][0]] for place in found.places)
    assert found.expected_ns == pytest.approx(ms(7 + found.size * (longest - 7)), rel=0.04)
    assert waiting[found.places[-1]][1] * 1.05 > 7 + found.size * (longest - 7)
