"""Recent arrivals in the tuner, and the samples that the planner makes of them."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from horologe_cli.planning.planning_problem import recent_arrivals
from horologe_common.clock import ms, s
from horologe_common.service.settings import SettingsError
from horologe_tuner.core.scaling.recent_arrivals import SPAN_NS, ArrivalCounts, RecentArrivals


class AnsweringClient:
    """A client whose tuner answers with these counts."""

    def __init__(self, counts: ArrivalCounts) -> None:
        self._counts = counts

    def tune(self, command: str, document: bytes) -> Any:
        assert (command, document) == ("arrivals", b"p")
        return msgspec.to_builtins(self._counts)


def test_arrivals_are_counted_in_bins_and_old_ones_dropped() -> None:
    recent = RecentArrivals()
    for at_ns, count in ((ms(3), 2), (ms(7), 1), (ms(35), 4), (ms(31), 1)):
        recent.add(at_ns, ms(10), count)
    assert recent.counts(2.0) == ArrivalCounts(ms(10), (3, 0, 0, 5), 2.0)
    recent.add(SPAN_NS + ms(35), ms(10), 7)
    assert recent.counts(1.0).counts[0] == 5
    assert sum(recent.counts(1.0).counts) == 12
    recent.add(SPAN_NS + ms(40), ms(5), 1)
    assert recent.counts(1.0) == ArrivalCounts(ms(5), (1,), 1.0)
    assert RecentArrivals().counts(1.0).counts == ()


def test_a_sample_has_the_queries_of_each_bin_in_order() -> None:
    counts = np.random.default_rng(1).poisson(1.5, 2000)
    observed = ArrivalCounts(ms(10), tuple(counts.tolist()))
    arrivals_ns = recent_arrivals(AnsweringClient(observed), "p")  # type: ignore[arg-type]
    assert np.array_equal(np.bincount(arrivals_ns // ms(10), minlength=2000), counts)
    assert (np.diff(arrivals_ns) >= 0).all()
    assert arrivals_ns[-1] < s(20)


def test_several_calls_of_a_query_are_one_arrival() -> None:
    observed = ArrivalCounts(ms(10), (5,) * 100, 2.5)
    assert len(recent_arrivals(AnsweringClient(observed), "p")) == 200  # type: ignore[arg-type]


def test_too_few_arrivals_are_an_error() -> None:
    with pytest.raises(SettingsError, match="got 7 recent arrivals of p, wanted at least 100"):
        recent_arrivals(AnsweringClient(ArrivalCounts(ms(10), (7,))), "p")  # type: ignore[arg-type]
