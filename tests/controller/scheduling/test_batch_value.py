"""Choice of a batch from distributions of execution times, and of the queue that goes first."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.builders import a_report, a_spec
from horologe_common.clock import ms
from horologe_common.distribution import Distribution
from horologe_common.wire import Register, Submit
from horologe_common.wire import Share as Told
from horologe_controller.core.cluster.cluster import Cluster, WorkerMirror
from horologe_controller.core.requests.request import Request
from horologe_controller.core.runtime_distributions import RuntimeDistributions, SoloDistribution
from horologe_controller.core.scheduling.batch_value import BatchChoice, QueuedRequests, choose_batch
from horologe_controller.core.scheduling.queues import ModelQueue
from horologe_controller.core.scheduling.ranking import Ranking
from horologe_controller.schedulers.horologe import Horologe
from horologe_controller.settings import ControllerSettings

BASE_NS, SIZES = ms(7), (1, 2, 4, 8)
NOW = ms(1000)


def fixed(*solo_ms: float) -> RuntimeDistributions:
    """Return distributions of applications "0", "1", ... with constant solo times."""
    return RuntimeDistributions(
        BASE_NS, [SoloDistribution(str(number), 0, Distribution.point(ms(took))) for number, took in enumerate(solo_ms)]
    )


def best(
    known: RuntimeDistributions,
    *waiting: tuple[str, float],
    start_ns: int = NOW,
    sizes: tuple[int, ...] = SIZES,
    rows: list[int] | None = None,
) -> BatchChoice | None:
    """Return the choice for queued requests (application, ms left), ascending, of so many `rows` each."""
    deadlines_ns, kinds = [NOW + ms(left) for _, left in waiting], [known.kind_of(one, 0) for one, _ in waiting]
    return choose_batch(start_ns, QueuedRequests(deadlines_ns, kinds, sizes, known, rows))


def test_likes_go_with_likes() -> None:
    found = best(fixed(10, 40), ("1", 100), ("0", 100), ("1", 101), ("0", 101))
    assert found is not None
    assert (found.places, found.size) == ((1, 3), 2)
    assert found.expected_ns == pytest.approx(ms(7 + 2 * 3), rel=0.03)


def test_a_larger_batch_is_chosen_where_rows_run_at_once() -> None:
    """Two rows of 3 ms fit before the first deadline one by one, and in a batch only if it takes less than 6 ms."""
    parts = [SoloDistribution("0", 0, Distribution.point(ms(10)))]
    waiting = [("0", 12.0), ("0", 300)]
    alone = best(RuntimeDistributions(BASE_NS, parts), *waiting)
    together = best(RuntimeDistributions(BASE_NS, parts, ((1, 1.0), (2, 1.2))), *waiting)
    assert alone is not None
    assert together is not None
    assert (alone.size, together.size) == (1, 2)
    assert together.expected_ns == pytest.approx(ms(7 + 1.2 * 3), rel=0.03)


def test_a_kind_with_slack_gives_way() -> None:
    found = best(fixed(10, 30), ("1", 32), ("0", 300), ("0", 300), ("0", 300))
    assert found is not None
    assert found.places == (0,)


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


def test_a_gamble_counts_only_the_requests_that_it_is_likely_to_serve() -> None:
    known = RuntimeDistributions(
        BASE_NS, [SoloDistribution("0", 0, Distribution.from_samples([ms(10)] * 3 + [ms(60)]))]
    )
    alone, early = best(known, ("0", 30)), best(known, ("0", 300))
    assert alone is not None
    assert early is not None
    assert alone.in_time == pytest.approx(0.75)
    assert alone.least_ns == pytest.approx(ms(10), rel=0.05)
    assert early.in_time == 1


def test_the_request_with_the_most_time_left_goes_where_none_is_in_time_by_the_median() -> None:
    solo = Distribution.from_samples([ms(10), ms(20), ms(30), ms(40)])
    found = best(RuntimeDistributions(BASE_NS, [SoloDistribution("0", 0, solo)]), ("0", 12), ("0", 18))
    assert found is not None
    assert (found.places, found.size) == ((1,), 1)
    assert 0 < found.in_time < 0.5


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


def test_a_request_alone_runs_in_the_smallest_size() -> None:
    found = best(fixed(10), ("0", 300), sizes=(4, 8))
    assert found is not None
    assert (found.places, found.size) == ((0,), 4)


@pytest.mark.parametrize(
    ("rows", "sizes", "places", "size"),
    [
        ([3, 1], SIZES, (0, 1), 4),
        ([4, 8, 4], SIZES, (0, 2), 8),  # the second one does not fit beside the first
        ([5], (1, 16), (0,), 16),  # no smaller size holds it
        ([5, 4], (1, 16), (0, 1), 16),
        ([2, 1], SIZES, (0, 1), 4),
    ],
)
def test_the_rows_of_all_requests_fit_into_the_batch(
    rows: list[int], sizes: tuple[int, ...], places: tuple[int, ...], size: int
) -> None:
    parts = [SoloDistribution("0", 0, Distribution.point(ms(10)))]
    known = RuntimeDistributions(BASE_NS, parts, ((1, 1.0), (16, 1.2)))
    found = best(known, *[("0", 1000.0)] * len(rows), sizes=sizes, rows=rows)
    assert found is not None
    assert (found.places, found.size) == (places, size)


def test_each_row_of_a_request_may_be_the_longest_one() -> None:
    solo = Distribution.from_samples([ms(10)] * 9 + [ms(60)])
    known = RuntimeDistributions(BASE_NS, [SoloDistribution("0", 0, solo)])
    found = best(known, ("0", 7 + 4 * 3.5), rows=[4])
    assert found is not None
    assert found.in_time == pytest.approx(0.9**4, rel=0.05)


@given(LEFT, st.lists(st.integers(1, 8), min_size=30, max_size=30))
def test_a_batch_of_requests_of_several_rows_is_one_that_could_be_run(
    waiting: list[tuple[str, float]], rows: list[int]
) -> None:
    solo_ms = {"0": 8, "1": 20, "2": 45}
    waiting = sorted(waiting, key=lambda one: one[1])
    found = best(fixed(*solo_ms.values()), *waiting, rows=rows[: len(waiting)])
    if found is None:
        alone_ms = [7 + 8 * (solo_ms[one] - 7) for one, _ in waiting]
        assert all(left < took_ms * 1.05 for (_, left), took_ms in zip(waiting, alone_ms, strict=True))
        return
    filled, most = (take(rows[place] for place in found.places) for take in (sum, max))
    assert found.size in SIZES
    assert filled <= found.size
    assert 2 * filled > found.size or found.size == min(size for size in SIZES if size >= most)


@given(LEFT, st.integers(0, 200))
def test_a_choice_holds_for_starts_up_to_its_time(waiting: list[tuple[str, float]], later_ms: int) -> None:
    known, waiting = fixed(8, 20, 45), sorted(waiting, key=lambda one: one[1])
    found = best(known, *waiting)
    if found is None:
        return
    assert best(known, *waiting, start_ns=min(found.until_ns, NOW + ms(later_ms)) or NOW) == found


SPREAD = [
    SoloDistribution("0", 0, Distribution.from_samples([ms(8), ms(9), ms(14)])),
    SoloDistribution("1", 0, Distribution.from_samples([ms(20), ms(24)])),
    SoloDistribution("2", 0, Distribution.from_samples([ms(30), ms(30), ms(90)])),
]


ROWS_THAT_FIT_LATER = [("0", 1.0)] * 6 + [("0", 26.0), ("0", 34.0), ("0", 35.0), ("0", 36.0)]


@example([ROWS_THAT_FIT_LATER, [("0", 60.0)]], [22, 24], 3)
@given(st.lists(LEFT, min_size=1, max_size=6), st.lists(st.integers(0, 120), min_size=1, max_size=6), st.integers(1, 3))
def test_the_queue_with_the_lowest_rank_goes_first(
    waiting: list[list[tuple[str, float]]], starts: list[int], most_rows: int
) -> None:
    cluster = Cluster()
    policy = Horologe(ControllerSettings(), cluster)
    specs = [a_spec(f"m{number}", batch_sizes=SIZES) for number in range(len(waiting))]
    worker = cluster.workers["w"] = WorkerMirror("w", True)
    shares = (Told(0, "d", 64, tuple(spec.key for spec in specs)),)
    cluster.register_worker(worker, Register(shares, tuple(a_report(spec) for spec in specs)))
    cluster.distributions |= {spec.key: RuntimeDistributions(BASE_NS, SPREAD) for spec in specs[1:]}  # one is static
    (share,) = cluster.shares()
    ranking, number = Ranking(policy.best_batch, policy.rank_bound), 0
    for spec, requests in zip(specs, waiting, strict=True):
        queue = ModelQueue(spec)
        for application, left in requests:
            number += 1
            deadline_ns = NOW + ms(left)
            rows = 1 + number % most_rows
            request = Request(number, "s", Submit(number, spec.key, 0, rows, "f", number), spec, NOW, deadline_ns)
            request.application = application
            policy.on_requests_arrived([request])
            queue.insert([request])
        if queue:
            ranking.changed[queue] = True
    queues = list(ranking.changed)
    for start_ns in (NOW + ms(start) for start in sorted(starts)):
        strategies = [policy.best_batch(NOW, start_ns, share, queue) for queue in queues]
        ranks = [strategy.rank for strategy in strategies if strategy is not None]
        found = ranking.best_strategy(NOW, start_ns, share)
        assert (None if found is None else found.rank) == min(ranks, default=None)
        ranking.check()
