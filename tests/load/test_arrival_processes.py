"""Arrival processes: Poisson, gamma, popularity, and arrivals from files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from horologe_experiments.harness.request_streams import popularity
from horologe_load.arrivals import RateStep, gamma, gamma_steps, poisson, read_arrivals, read_trace

if TYPE_CHECKING:
    from pathlib import Path


def test_poisson_is_the_same_for_the_same_seed_only() -> None:
    assert poisson(1000, 2, 1) == poisson(1000, 2, 1)
    assert poisson(1000, 2, 1) != poisson(1000, 2, 2)


def test_poisson_has_its_rate_its_variance_and_its_order() -> None:
    arrivals = poisson(2000, 10, 3)
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] < 10e9
    gaps = np.diff(arrivals) / 1e9
    assert 1 / gaps.mean() == pytest.approx(2000, rel=0.03)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)


@pytest.mark.parametrize("cv", [0.25, 1.0, 4.0])
def test_gamma_gaps_have_their_rate_and_their_variance_over_squared_mean(cv: float) -> None:
    arrivals = gamma(300, cv, 600, 5)
    gaps = np.diff(arrivals)
    assert (gaps >= 0).all()
    assert arrivals[-1] <= 600e9
    assert 1e9 / gaps.mean() == pytest.approx(300, rel=0.03)
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(cv, rel=0.06)


def test_short_steps_of_gamma_arrivals_keep_the_rate() -> None:
    """A process that began anew in every step would have (cv - 1) / 2 arrivals too many in each."""
    arrivals = gamma_steps([RateStep(0.1, 100, 4)] * 5000, 7)
    assert len(arrivals) == pytest.approx(50_000, rel=0.03)


def test_gamma_steps_change_the_rate_and_may_be_silent() -> None:
    arrivals = gamma_steps([RateStep(50, 150), RateStep(10, 0), RateStep(50, 250, 4)], 7)
    counts = np.histogram(arrivals / 1e9, [0, 50, 60, 110])[0]
    assert counts[1] == 0
    assert counts[0] == pytest.approx(7500, rel=0.05)
    assert counts[2] == pytest.approx(12500, rel=0.1)
    assert (gamma_steps([RateStep(50, 150)], 7) == gamma(150, 1, 50, 7)).all()
    assert gamma_steps([RateStep(1, 0)], 7).size == 0


@pytest.mark.parametrize("step", [RateStep(1, -1), RateStep(0, 1), RateStep(1, 1, 0), RateStep(1, float("nan"))])
def test_invalid_gamma_steps_are_errors(step: RateStep) -> None:
    with pytest.raises(ValueError, match="wanted a rate"):
        gamma_steps([step], 1)


@pytest.mark.parametrize(("rate", "seconds"), [(0, 1), (1, 0), (-1, 1)])
def test_poisson_rejects_what_is_not_positive(rate: float, seconds: float) -> None:
    with pytest.raises(ValueError, match="wanted both above 0"):
        poisson(rate, seconds, 1)


def test_popularity_is_a_power_law() -> None:
    assert popularity(3, 1.0).tolist() == pytest.approx([6 / 11, 3 / 11, 2 / 11])
    assert popularity(2, 0.0).tolist() == [0.5, 0.5]


def test_arrivals_are_read_from_files(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("2,a\n0.5\n\n1,a\n")
    assert read_arrivals(path) == {"a": [10**9, 2 * 10**9], "": [5 * 10**8]}
    with pytest.raises(ValueError, match="more than 1 lines"):
        read_arrivals(path, limit=1)
    path.write_text("1\n-1\n")
    with pytest.raises(ValueError, match="line 2: got '-1'"):
        read_arrivals(path)


def test_times_count_from_the_first_in_nanoseconds(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("1000.5\n1000.5,model\n1001.25\n")
    assert read_trace(path).tolist() == [0, 0, 750_000_000]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "got no arrivals"),
        ("1\n\n2\n", "line 2: got '', wanted a time in seconds"),
        ("1\ntwo\n", "line 2: got 'two', wanted a time in seconds"),
        ("-1\n", "line 1: got -1, wanted a time of at least 0 s"),
        ("1\nnan\n", "line 2: got nan, wanted a time of at least 0 s"),
        ("3\n2\n", "line 2: got 2 after 3, wanted the times in order"),
        ("3\n4\n70\n", "line 3: got 66 s without an arrival, wanted at most 60 s"),
    ],
)
def test_what_is_no_trace_is_an_error_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_trace(path)


def test_bounds_can_be_changed(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("3\n4\n70\n")
    assert len(read_trace(path, max_gap_s=100)) == 3
    with pytest.raises(ValueError, match="more than 2 lines"):
        read_trace(path, limit=2, max_gap_s=100)
