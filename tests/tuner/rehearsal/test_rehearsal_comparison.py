"""Comparison of schedulers by their scores in a rehearsal, and the requests that are rehearsed."""

from __future__ import annotations

import pytest

from horologe_common.clock import ms, s
from horologe_common.wire import (
    RequestTrace,
    TracedRequest,
)
from horologe_tuner.core.rehearsal.comparison import choose_candidate, gain_of
from horologe_tuner.core.rehearsal.recent_traffic import TrafficWindow
from horologe_tuner.core.rehearsal.rehearsal_documents import RehearsalScores
from tuner.rehearsal_scores import scores_of


def choose(scores: RehearsalScores, current: str = "horologe") -> str:
    """Return the choice if the rehearsal before had the same scores."""
    return choose_candidate(scores, scores, current, "horologe")


def test_a_clear_gain_changes_the_scheduler() -> None:
    assert choose(scores_of(horologe=90, edf=92, orloj=95)) == "orloj"


def test_a_gain_that_the_rehearsal_before_did_not_show_does_not() -> None:
    scores = scores_of(horologe=90, orloj=95, edf=92)
    assert choose_candidate(scores, RehearsalScores(), "horologe", "horologe") == "horologe"
    assert choose_candidate(scores, scores_of(horologe=90, orloj=90), "horologe", "horologe") == "horologe"
    assert choose_candidate(scores, scores_of(horologe=90, orloj=90, edf=91), "horologe", "horologe") == "edf"


def test_a_small_gain_does_not() -> None:
    assert choose(scores_of((1000,) * 19, horologe=900, orloj=909)) == "horologe"


def test_a_gain_that_one_block_explains_does_not() -> None:
    lucky = [90] * 18 + [90 + 60]
    scores = scores_of((200,) * 19, horologe=90, orloj=lucky)
    gain = gain_of(scores, "orloj", "horologe")
    assert gain.mean > 0.01
    assert gain.error == pytest.approx(gain.mean)
    assert choose(scores) == "horologe"


def test_the_default_returns_when_another_scheduler_is_hardly_better() -> None:
    keeps = scores_of((1000,) * 19, horologe=900, orloj=905)
    assert choose(keeps, "orloj") == "orloj"
    hardly = scores_of((1000,) * 19, horologe=900, orloj=902)
    assert choose(hardly, "orloj") == "horologe"
    third = scores_of((1000,) * 19, horologe=900, orloj=902, edf=950)
    assert choose(third, "orloj") == "edf"


def test_the_window_is_bounded_by_time_and_number() -> None:
    window = TrafficWindow(s(10), 100)
    rows = tuple(TracedRequest(number % 2, ms(number), ms(50)) for number in range(200))
    window.add(RequestTrace(("a/1", "b/1"), rows))
    assert len(window) == 100
    assert [request.arrival_ns for request in window.trace(("b/1",)).requests[:2]] == [ms(101), ms(103)]
    window.add(RequestTrace(("c/1",), (TracedRequest(0, s(10) + ms(150), ms(50)),)))
    assert len(window) == 51
    assert window.models()[-1] == "c/1"
    window.add(RequestTrace((), (), left_out=1))
    assert len(window) == 0


def test_a_gain_that_the_recent_requests_contradict_does_not_count() -> None:
    before, after = [950] * 13, [890] * 6
    scores = scores_of((1000,) * 19, horologe=900, orloj=before + after)
    assert gain_of(scores, "orloj", "horologe").is_clear
    assert choose(scores) == "horologe"
    assert choose(scores, "orloj") == "horologe"
