"""Distributions of execution times, compared with samples, with the formulas of ORLOJ, and with invariants."""

from __future__ import annotations

import math
import pickle
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from horologe_common.clock import ms
from horologe_common.distribution import Distribution, batch_of, maximum_of, mixture

SEED = 7
SAMPLES = 200_000


def drawn(distribution: Distribution, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw samples from a histogram: a bin, then a uniform point in it."""
    bins = rng.choice(distribution.mass.size, count, p=distribution.mass)
    return rng.uniform(distribution.edges_ns[bins], distribution.edges_ns[bins + 1])


def density(distribution: Distribution, t_ns: np.ndarray) -> np.ndarray:
    """Return the PDF at the points; 0 outside of all bins."""
    place = np.searchsorted(distribution.edges_ns, t_ns, "right") - 1
    inside = (place >= 0) & (place < distribution.mass.size)
    heights = distribution.mass / np.diff(distribution.edges_ns)
    return np.where(inside, heights[np.clip(place, 0, distribution.mass.size - 1)], 0.0)


def oezbey(parts: list[Distribution], t_ns: np.ndarray) -> np.ndarray:
    """Return the PDF of the maximum by equations 7 and 8 of ORLOJ."""
    k, total = len(parts), np.zeros_like(t_ns)
    for kappa in range(1, k + 1):
        for subset in combinations(range(k), kappa):
            cdf = sum(parts[one].cdf(t_ns) for one in subset) / kappa
            pdf = sum(density(parts[one], t_ns) for one in subset) / kappa
            total += (-1) ** (k - kappa) * kappa**k / math.factorial(k) * k * cdf ** (k - 1) * pdf
    return total


@st.composite
def distributions(draw: st.DrawFn) -> Distribution:
    count = draw(st.integers(1, 6))
    widths = draw(st.lists(st.integers(1, 10_000), min_size=count, max_size=count))
    counts = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count).filter(any))
    return Distribution.from_counts(draw(st.integers(0, 20_000)) + np.cumsum([0, *widths]), counts)


several = st.lists(distributions(), min_size=1, max_size=6)


def nodes_of(parts: list[Distribution]) -> tuple[np.ndarray, np.ndarray]:
    """Return quadrature points and weights that are exact for the polynomials of each bin."""
    edges = np.unique(np.concatenate([part.edges_ns for part in parts]))
    nodes, weights = np.polynomial.legendre.leggauss(8)
    half = np.diff(edges)[:, None] / 2
    return (edges[:-1, None] + half + half * nodes), half * weights


@given(several)
def test_the_product_of_the_cdfs_is_equation_8(parts: list[Distribution]) -> None:
    points, weights = nodes_of(parts)
    pdf = oezbey(parts, points)
    ours = maximum_of(parts)
    assert (weights * pdf).sum() == pytest.approx(1, abs=1e-6)
    assert ours.mean_ns == pytest.approx((weights * pdf * points).sum(), rel=1e-6, abs=1e-3)
    below = np.cumsum((weights * pdf).sum(axis=1))
    edges = np.unique(np.concatenate([part.edges_ns for part in parts]))[1:]
    assert ours.cdf(edges) == pytest.approx(below, abs=1e-6)


@given(distributions(), st.integers(1, 40))
def test_the_maximum_of_equal_distributions_is_equation_6(one: Distribution, k: int) -> None:
    most = one.maximum(k)
    assert most.cdf(one.edges_ns) == pytest.approx(one.cdf(one.edges_ns) ** k, abs=1e-9)
    # by parts, with the CDF a line on each bin: E = end - sum of w (b^(k+1) - a^(k+1)) / ((k + 1) (b - a))
    below, widths = one.cdf(one.edges_ns), np.diff(one.edges_ns)
    powers = sum(below[:-1] ** power * below[1:] ** (k - power) for power in range(k + 1))
    assert most.mean_ns == pytest.approx(one.edges_ns[-1] - (widths * powers).sum() / (k + 1), rel=1e-9, abs=1e-3)


def three() -> list[Distribution]:
    """Return distributions of different shapes, one of them with a gap."""
    return [
        Distribution.from_counts([ms(1), ms(5), ms(40), ms(41)], [5, 0, 3]),
        Distribution.from_counts([ms(10), ms(20), ms(30)], [1, 2]),
        Distribution.point(ms(25)),
    ]


def test_maxima_and_batches_agree_with_sampling() -> None:
    rng = np.random.default_rng(SEED)
    parts = three()
    samples = np.array([drawn(part, SAMPLES, rng) for part in parts])
    longest = samples.max(axis=0)
    most = maximum_of(parts)
    assert most.mean_ns == pytest.approx(longest.mean(), rel=0.005)
    for edge_ns in most.edges_ns:
        assert most.cdf(edge_ns) == pytest.approx((longest <= edge_ns).mean(), abs=0.005)
    base_ns = ms(8)
    takes = base_ns + 3 * np.maximum(0, samples - base_ns).max(axis=0)
    batch = batch_of(parts, base_ns)
    assert batch.mean_ns == pytest.approx(takes.mean(), rel=0.005)
    for edge_ns in batch.edges_ns:
        assert batch.cdf(edge_ns) == pytest.approx((takes <= edge_ns).mean(), abs=0.005)


def test_a_batch_of_equal_distributions_agrees_with_sampling() -> None:
    rng = np.random.default_rng(SEED)
    alone = three()[0]
    takes = ms(0.5) + 4 * (np.array([drawn(alone, SAMPLES, rng) for _ in range(4)]) - ms(0.5)).max(axis=0)
    batch = alone.batch(ms(0.5), 4)
    assert batch.mean_ns == pytest.approx(takes.mean(), rel=0.005)
    assert batch.mass.sum() == pytest.approx(1)


def test_a_batch_of_one_takes_the_solo_time() -> None:
    for alone in three():
        batch = alone.batch(ms(0.5), 1)
        assert batch.mean_ns == pytest.approx(alone.mean_ns)
        assert batch.edges_ns == pytest.approx(alone.edges_ns)
        assert batch.mass == pytest.approx(alone.mass)


def test_times_below_the_base_add_nothing() -> None:
    assert Distribution.point(ms(3)).batch(ms(5), 8).mean_ns == pytest.approx(ms(5), abs=8)
    half = mixture([Distribution.point(ms(3)), Distribution.point(ms(7))])
    assert half.excess_over(ms(5)).cdf(0) == pytest.approx(0.5)
    assert half.excess_over(ms(5)).mean_ns == pytest.approx(ms(1), abs=1)


@given(several, st.data())
def test_a_mixture_is_as_likely_as_its_parts(parts: list[Distribution], data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.integers(1, 9), min_size=len(parts), max_size=len(parts)))
    mixed = mixture(parts, weights)
    for part in parts:
        wanted = np.average([one.cdf(part.edges_ns) for one in parts], axis=0, weights=weights)
        assert mixed.cdf(part.edges_ns) == pytest.approx(wanted, abs=1e-9)
    assert mixed.mean_ns == pytest.approx(np.average([part.mean_ns for part in parts], weights=weights))


@given(distributions(), st.floats(0, 1))
def test_quantiles_are_the_inverse_of_the_cdf(one: Distribution, q: float) -> None:
    at_ns = one.quantile_ns(q)
    assert one.edges_ns[0] <= at_ns <= one.edges_ns[-1]
    assert one.cdf(at_ns) == pytest.approx(q, abs=1e-9)
    assert one.cdf(at_ns - 1) <= q + 1e-9


@given(distributions(), st.integers(1, 5))
def test_more_requests_take_longer(one: Distribution, k: int) -> None:
    shorter, longer = one.maximum(k), one.maximum(k + 1)
    assert shorter.mean_ns <= longer.mean_ns + 1e-6
    assert (shorter.cdf(one.edges_ns) >= longer.cdf(one.edges_ns) - 1e-12).all()
    assert one.batch(100, k).mean_ns <= one.batch(100, k + 1).mean_ns + k + 1  # the bin that ends at 0 is wider


samples_ns = st.lists(st.integers(0, 10**10), min_size=1, max_size=300)


@given(samples_ns, st.integers(2, 64))
def test_a_histogram_is_close_to_its_samples(samples: list[int], bins: int) -> None:
    found = Distribution.from_samples(samples, bins)
    assert found.mean_ns == pytest.approx(np.mean(samples))
    assert found.mass.size <= max(3 * bins, 1)
    assert found.edges_ns[0] == min(samples) - 0.5
    assert found.edges_ns[-1] == max(samples) + 0.5
    for edge_ns in found.edges_ns:
        assert found.cdf(edge_ns) == pytest.approx(np.mean(np.array(samples) < edge_ns))


def test_modes_stay_apart_and_ties_stay_points() -> None:
    rng = np.random.default_rng(SEED)
    samples = np.concatenate((rng.normal(ms(20), ms(1), 700), rng.normal(ms(200), ms(1), 300)))
    found = Distribution.from_samples(samples)
    assert found.cdf(ms(30)) == pytest.approx(0.7)
    assert found.cdf(ms(190)) == pytest.approx(0.7)
    assert found.maximum(4).mean_ns == pytest.approx(rng.choice(samples, (50_000, 4)).max(axis=1).mean(), rel=0.01)
    static = Distribution.from_samples([ms(5)] * 100)
    assert static.mass.size == 1
    assert static.quantile_ns(0.99) == pytest.approx(ms(5), abs=1)


def test_coarse_histograms_keep_mean_and_range() -> None:
    fine = maximum_of(three() * 2)
    many = mixture([fine.affine(ms(shift), 1.0) for shift in range(40)])
    few = many.coarsen(16)
    assert many.mass.size > 48 >= few.mass.size
    assert few.mean_ns == many.mean_ns
    assert few.cdf(few.edges_ns) == pytest.approx(many.cdf(few.edges_ns))


def test_distributions_are_immutable() -> None:
    one = three()[0]
    with pytest.raises(ValueError, match="read-only"):
        one.mass[0] = 1.0


def test_distributions_can_be_in_snapshots() -> None:
    one = three()[0]
    again = pickle.loads(pickle.dumps(one))
    assert (again.edges_ns.tolist(), again.mass.tolist(), again.mean_ns) == (
        one.edges_ns.tolist(),
        one.mass.tolist(),
        one.mean_ns,
    )


@pytest.mark.parametrize(
    ("edges", "mass", "field"),
    [
        ([0, 1], [0.5, 0.5], "mass"),
        ([0, 1, 1], [0.5, 0.5], "edges_ns"),
        ([0, 1, math.nan], [0.5, 0.5], "edges_ns"),
        ([0, 1, 2], [0.5, 0.6], "mass"),
        ([0, 1, 2], [-0.5, 1.5], "mass"),
        ([0], [], "edges_ns"),
    ],
)
def test_an_invalid_field_is_named(edges: list[float], mass: list[float], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        Distribution(edges, mass)


def test_no_samples_are_an_error() -> None:
    with pytest.raises(ValueError, match="samples_ns"):
        Distribution.from_samples([])
    with pytest.raises(ValueError, match="counts"):
        Distribution.from_counts([0, 1], [0])
    for combine in (mixture, maximum_of):
        with pytest.raises(ValueError, match="parts"):
            combine([])
