"""Kinds of requests: which distribution says most of a request, and what their batches take."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.builders import a_spec
from horologe_common.clock import ms
from horologe_common.distribution import Distribution, maximum_of
from horologe_common.recording import snapshot
from horologe_common.wire import Distributions, DurationHistogram, Submit
from horologe_controller.core.requests.request import Request
from horologe_controller.core.runtime_distributions import RuntimeDistributions, SoloDistribution, store_distributions

BASE_NS = ms(7)
SHORT, LONG = Distribution.from_samples([ms(8), ms(9)]), Distribution.from_samples([ms(20), ms(30)])


def test_a_request_is_of_the_most_telling_kind() -> None:
    known = RuntimeDistributions(
        BASE_NS,
        [SoloDistribution("chat", 16, SHORT), SoloDistribution("chat", 64, LONG), SoloDistribution("mail", 0, LONG)],
    )

    def mean_ms(application: str, length: int) -> float:
        return known.parts[known.kind_of(application, length)].solo.mean_ns / 1e6

    assert mean_ms("chat", 10) == mean_ms("chat", 16) == pytest.approx(8.5)
    assert mean_ms("chat", 17) == mean_ms("chat", 1000) == pytest.approx(25)
    assert mean_ms("chat", 0) == pytest.approx((8.5 + 25) / 2)
    assert mean_ms("mail", 12) == pytest.approx(25)
    assert mean_ms("unheard of", 16) == pytest.approx(8.5)
    assert mean_ms("unheard of", 0) == pytest.approx((8.5 + 25 + 25) / 3)


def test_kinds_are_ordered_by_their_mean() -> None:
    known = RuntimeDistributions(BASE_NS, [SoloDistribution("b", 0, LONG), SoloDistribution("a", 0, SHORT)])
    assert [part.application for part in known.parts] == ["a", "", "b"]
    assert list(known.row_mean_ns) == sorted(known.row_mean_ns)


def test_on_a_slow_device_all_times_grow() -> None:
    known = RuntimeDistributions(BASE_NS, [SoloDistribution("", 0, LONG)], ((1, 1.0), (4, 2.0)))
    slow = known.slowed(2.9)
    assert slow is known.slowed(2.95)
    assert slow.base_ns == pytest.approx(2.9 * BASE_NS, rel=0.03)
    assert slow.mean_ns == pytest.approx(2.9 * LONG.mean_ns, rel=0.03)
    assert slow.longest_row((0,)).mean_ns == pytest.approx(2.9 * known.longest_row((0,)).mean_ns, rel=0.03)
    assert slow.needed_ns(0, 4) == pytest.approx(2.9 * known.needed_ns(0, 4), rel=0.03)
    assert slow.kind_of("", 0) == known.kind_of("", 0)
    assert slow.scale(4) == 2
    assert known.slowed(1.02) is known


def test_unknown_requests_are_like_most_samples() -> None:
    """Nine in ten samples are short, so a request of another application is likely to be short."""
    known = RuntimeDistributions(BASE_NS, [SoloDistribution("a", 0, SHORT, 90), SoloDistribution("b", 0, LONG, 10)])
    mean_ns = 0.9 * SHORT.mean_ns + 0.1 * LONG.mean_ns
    assert known.parts[known.kind_of("c", 0)].solo.mean_ns == pytest.approx(mean_ns)
    assert known.mean_ns == pytest.approx(mean_ns)
    histograms = (
        DurationHistogram("a", 0, (ms(8), ms(9)), (90,)),
        DurationHistogram("b", 0, (ms(20), ms(30)), (10,)),
    )
    stored: dict[str, RuntimeDistributions] = {}
    store_distributions(stored, Distributions("m/1", BASE_NS, 0.0, histograms, dynamic=True))
    assert stored["m/1"].mean_ns == pytest.approx(mean_ns, rel=0.01)


def test_the_mean_and_the_deviation_of_a_batch() -> None:
    known = RuntimeDistributions(0, [SoloDistribution("a", 0, Distribution.from_samples([ms(10), ms(30)]))])
    spec = a_spec("m")
    request = Request(1, "s", Submit(1, spec.key, 0, 1, "f", 1), spec, 0, ms(100))
    mean_ns, spread = known.batch_moments([request], 1)
    assert mean_ns == pytest.approx(ms(20), rel=0.02)
    assert spread == pytest.approx(0.5, rel=0.05)


def test_no_distributions_is_an_error() -> None:
    with pytest.raises(ValueError, match="parts: got none"):
        RuntimeDistributions(BASE_NS, [])


def test_durations_survive_a_recording() -> None:
    known = RuntimeDistributions(BASE_NS, [SoloDistribution("chat", 16, SHORT), SoloDistribution("mail", 0, LONG)])
    again = snapshot.restore(snapshot.snapshot(known))  # type: ignore[arg-type]  # a part of a core is as good
    assert [part.solo.mean_ns for part in again.parts] == [part.solo.mean_ns for part in known.parts]
    assert again.kind_of("chat", 3) == known.kind_of("chat", 3)


def told(*times_ms: float) -> Distributions:
    edges = tuple(round(took * 1e6) for took in times_ms)
    histogram = DurationHistogram("chat", 0, edges, (1,) * (len(edges) - 1))
    return Distributions("m/1", BASE_NS, 0.0, (histogram,), dynamic=True)


def test_only_models_whose_time_depends_on_the_input_are_dynamic() -> None:
    known: dict[str, RuntimeDistributions] = {}
    store_distributions(known, msgspec.structs.replace(told(10, 20, 40), batch_scales=((1, 1.0), (4, 2.0))))
    assert known["m/1"].scale(4) == 2
    assert known["m/1"].kind_of("chat", 5) == known["m/1"].kind_of("chat", 0)
    store_distributions(known, msgspec.structs.replace(told(10, 20), dynamic=False))
    assert known == {}
    store_distributions(known, told(10, 20))
    store_distributions(known, Distributions("m/1", BASE_NS))
    assert known == {}
    with pytest.raises(ValueError, match="edges_ns"):
        store_distributions(known, told(20, 10))


SAMPLES = st.lists(st.floats(8, 200), min_size=1, max_size=30)


@given(SAMPLES, SAMPLES, st.integers(0, 8), st.integers(1, 8))
def test_the_grid_knows_the_longest_of_a_batch(first: list[float], second: list[float], a: int, b: int) -> None:
    parts = [Distribution.from_samples(np.array(samples) * 1e6) for samples in (first, second)]
    known = RuntimeDistributions(BASE_NS, [SoloDistribution("a", 0, parts[0]), SoloDistribution("b", 0, parts[1])])
    counts = np.zeros(len(known))
    counts[known.kind_of("a", 0)] += a
    counts[known.kind_of("b", 0)] += b
    below = np.exp(counts @ known.log_cdf)
    exact = maximum_of([parts[0]] * a + [parts[1]] * b)
    assert np.abs(below - exact.cdf(known.grid_ns + BASE_NS)).max() < 1e-3


def test_a_measured_scale_replaces_the_size() -> None:
    part = SoloDistribution("a", 0, LONG)
    assert [RuntimeDistributions(BASE_NS, [part]).scale(size) for size in (1, 3, 8)] == [1, 3, 8]
    known = RuntimeDistributions(BASE_NS, [part], ((1, 1.0), (2, 1.5), (8, 3.0)))
    assert [known.scale(size) for size in (1, 2, 5, 8)] == [1, 1.5, 2.25, 3]
    assert known.scale(16) == 6, "no gain beyond the largest measured batch"
    needed_ns = RuntimeDistributions(BASE_NS, [part]).needed_ns(0, 8)
    assert known.needed_ns(0, 8) == pytest.approx(3 / 8 * needed_ns)
    again = snapshot.restore(snapshot.snapshot(known))  # type: ignore[arg-type]  # a part of a core is as good
    assert again.scale(5) == 2.25
