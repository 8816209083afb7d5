"""ORLOJ's queue against algorithm 1 and eq. 2 written out."""

from __future__ import annotations

import math
import pickle
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from horologe_common.clock import ms, s
from horologe_common.distribution import Distribution, batch_of, mixture
from horologe_controller.schedulers.orloj.score_queue import ScoreQueue
from horologe_controller.schedulers.orloj.scores import Scores

NOW = s(10**6)
SIZES = (1, 2, 4)
BASE_NS = ms(2)
GROUPS = [
    Distribution.from_counts([ms(5), ms(8), ms(20), ms(30)], [3, 0, 1]),
    Distribution.from_counts([ms(4), ms(6)], [1]),
    Distribution.point(ms(12)),
]
MIXED = mixture(GROUPS)
LATENCY = [[batch_of([one] + [MIXED] * (size - 1), BASE_NS) for one in GROUPS] for size in SIZES]
MEAN_NS = [MIXED.batch(BASE_NS, size).mean_ns for size in SIZES]


def equation_2(latency: Distribution, mean_ns: float, b: float, deadline_ns: int, t_ns: int) -> float:
    """Return eq. 2 as printed in the paper, in ms; h is the density in the bin."""
    mean, score = mean_ns / 1e6, 0.0
    deadline, t = (deadline_ns - t_ns) / 1e6, 0.0  # times count from t: then nothing overflows
    edges = (latency.edges_ns / 1e6).tolist()
    for mass, low, high in zip(latency.mass.tolist(), edges[:-1], edges[1:], strict=True):
        factor = mass / (high - low) / (mean * b)
        if t < deadline - high:
            score += factor * (math.exp(b * high) - math.exp(b * low)) * math.exp(-b * deadline) * math.exp(b * t)
        elif t < deadline - low:
            score += factor - factor * math.exp(b * low) * math.exp(-b * deadline) * math.exp(b * t)
    return score


def scores_of(b_per_ms: float = 1e-4, sizes: tuple[int, ...] = SIZES) -> Scores:
    return Scores(sizes, GROUPS, MIXED, BASE_NS, b_per_ms)


class Pending(NamedTuple):
    group: int
    deadline_ns: int
    rows: int


class Oracle:
    """Algorithm 1 over a list, with eq. 2 computed for every request at every choice."""

    def __init__(self, b_per_ms: float, *, earliest: bool) -> None:
        self.b_per_ms, self.earliest = b_per_ms, earliest
        self.requests: dict[int, Pending] = {}
        self.latency = LATENCY
        self.mean_ns = MEAN_NS

    def viable(self, place: int, t_ns: int) -> list[int]:
        return [
            key
            for key, one in self.requests.items()
            if one.rows <= SIZES[place] and t_ns + self.latency[place][one.group].mean_ns <= one.deadline_ns
        ]

    def score(self, place: int, key: int, t_ns: int) -> float:
        one = self.requests[key]
        latency, mean_ns = self.latency[place][one.group], self.mean_ns[place]
        return equation_2(latency, mean_ns, self.b_per_ms, one.deadline_ns, t_ns)

    def late(self, t_ns: int) -> list[int]:
        return sorted(self.requests.keys() - {key for place in range(len(SIZES)) for key in self.viable(place, t_ns)})

    def size(self, t_ns: int) -> int | None:
        """Return the index of the size that goes first, for requests of one row."""
        queues = [(place, self.viable(place, t_ns)) for place in range(len(SIZES))]
        full = [
            (min(self.requests[key].deadline_ns for key in queue), place)
            for place, queue in queues
            if queue and len(queue) >= SIZES[place]
        ]
        if not full:
            return None
        if self.earliest:
            return min(full, key=lambda one: (one[0], -one[1]))[1]
        return max(full)[1]


insertions = st.tuples(st.just("insert"), st.integers(0, 2), st.integers(1, 150))
removals = st.tuples(st.just("remove"), st.integers(0, 99), st.just(0))
choices = st.tuples(st.just("choose"), st.integers(0, 12), st.just(0))
steps = st.lists(st.one_of(insertions, insertions, removals, choices), max_size=40)


@pytest.mark.parametrize("b_per_ms", [1e-4, 1e-1])
@given(steps, st.booleans())
def test_it_chooses_what_algorithm_1_chooses(b_per_ms: float, told: list[tuple[str, int, int]], earliest: bool) -> None:
    scores = scores_of(b_per_ms)
    oracle = Oracle(b_per_ms, earliest=earliest)
    queue: ScoreQueue[int] = ScoreQueue(scores, earliest=earliest)
    t_ns = NOW
    for key, (what, number, left_ms) in enumerate(told):
        if what == "insert":
            deadline_ns = t_ns + ms(left_ms) + key  # no two alike
            oracle.requests[key] = Pending(number, deadline_ns, 1)
            queue.insert(key, number, deadline_ns)
        elif what == "remove" and oracle.requests:
            gone = sorted(oracle.requests)[number % len(oracle.requests)]
            del oracle.requests[gone]
            queue.remove(gone)
        else:
            t_ns += ms(number / 3)
            assert sorted(queue.timed_out_keys(t_ns)) == oracle.late(t_ns)
            place = oracle.size(t_ns)
            found = queue.choose_batch(t_ns)
            if place is None:
                assert found is None
                continue
            viable = sorted((oracle.score(place, key, t_ns) for key in oracle.viable(place, t_ns)), reverse=True)
            assert found is not None
            size, keys = found
            assert size == SIZES[place]
            assert len(keys) == len(set(keys)) == min(size, len(viable))
            scored = [oracle.score(place, key, t_ns) for key in keys]
            assert scored == pytest.approx(viable[: len(keys)], rel=1e-6, abs=1e-12)
        queue.check()


@given(st.floats(-5, 130), st.integers(0, 2), st.sampled_from([1e-6, 1e-4, 1e-2, 1e-1]))
def test_alpha_and_beta_are_equation_2(left_ms: float, group: int, b_per_ms: float) -> None:
    oracle = Oracle(b_per_ms, earliest=True)
    scores = scores_of(b_per_ms)
    for place in range(len(SIZES)):
        due_ns = np.array([left_ms * 1e6 + ms(7)])
        found = scores.parts(place, np.array([group]), ms(7), due_ns)
        alpha, beta, since_ns, until_ns = (float(one[0]) for one in found)
        assert since_ns <= ms(7) < until_ns
        for t_ns in (ms(7), min(until_ns - 1, ms(30))):
            wanted = equation_2(
                oracle.latency[place][group], oracle.mean_ns[place], b_per_ms, int(due_ns[0]), int(t_ns)
            )
            score_per_ms = (alpha * math.exp(b_per_ms * t_ns / 1e6) + beta) * 1e6
            assert score_per_ms == pytest.approx(wanted, rel=1e-3, abs=1e-9)


def test_a_request_too_late_for_large_sizes_runs_in_a_smaller_one() -> None:
    scores = scores_of()
    queue: ScoreQueue[int] = ScoreQueue(scores)
    for key in range(4):
        queue.insert(key, 1, NOW + ms(60))
    sizes = [queue.choose_batch(NOW + ms(after)) for after in (0, 20, 45)]
    assert [one and one[0] for one in sizes] == [4, 2, 1]
    assert queue.timed_out_keys(NOW + ms(45)) == []
    assert queue.timed_out_keys(NOW + ms(56)) == [0, 1, 2, 3]
    assert queue.choose_batch(NOW + ms(56)) is None


def test_the_two_orders_of_sizes() -> None:
    """An urgent request that is too late for the largest size: the text takes it next, line 16 the full batch."""
    scores = scores_of()
    for earliest, size in ((True, 1), (False, 4)):
        queue: ScoreQueue[int] = ScoreQueue(scores, earliest=earliest)
        queue.insert(0, 1, NOW + ms(8))
        for key in range(1, 5):
            queue.insert(key, 1, NOW + ms(150))
        assert (queue.choose_batch(NOW) or (0, []))[0] == size


def test_rows_fill_a_batch() -> None:
    queue: ScoreQueue[int] = ScoreQueue(scores_of())
    for key, rows in enumerate((3, 1, 2)):
        queue.insert(key, 1, NOW + ms(150) + key, rows)
    assert queue.choose_batch(NOW) == (4, [0, 1])
    queue.remove(1)
    assert queue.choose_batch(NOW) == (4, [0])
    queue.remove(0)
    assert queue.choose_batch(NOW) == (2, [2])  # no smaller size holds it
    queue.remove(2)
    assert queue.choose_batch(NOW) is None


def test_the_base_of_times_moves_before_an_overflow() -> None:
    """Fig. 13 goes up to b = 0.1 per ms, where e^(bt) would overflow after 7 s."""
    scores, oracle = scores_of(0.1), Oracle(0.1, earliest=True)
    queue: ScoreQueue[int] = ScoreQueue(scores)
    for key in range(20):
        deadline_ns = NOW + s(key) + ms(100)
        oracle.requests[key] = Pending(key % 3, deadline_ns, 1)
        queue.insert(key, key % 3, deadline_ns)
    for key in range(20):
        t_ns = NOW + s(key)
        chosen = queue.choose_batch(t_ns)
        assert chosen is not None
        assert chosen[1][0] == key
        queue.remove(key)
        assert queue.timed_out_keys(t_ns) == []
        queue.check()


def test_times_may_go_back_a_little() -> None:
    """Another share may be free sooner."""
    scores = scores_of()
    queue: ScoreQueue[int] = ScoreQueue(scores)
    fresh: ScoreQueue[int] = ScoreQueue(scores)
    for one in (queue, fresh):
        for key in range(12):
            one.insert(key, key % 3, NOW + ms(20 + 3 * key))
    first = fresh.choose_batch(NOW)
    queue.choose_batch(NOW + ms(30))
    assert queue.choose_batch(NOW) == first


def test_a_score_queue_survives_a_snapshot() -> None:
    queue: ScoreQueue[int] = ScoreQueue(scores_of(), earliest=False)
    for key in range(100):
        queue.insert(key, key % 3, NOW + ms(20 + 3 * key))
    for key in range(0, 100, 7):
        queue.remove(key)
    queue.choose_batch(NOW)
    again = pickle.loads(pickle.dumps(queue))
    again.check()
    assert [again.choose_batch(NOW + ms(t)) for t in range(9)] == [queue.choose_batch(NOW + ms(t)) for t in range(9)]
