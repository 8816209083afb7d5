"""Predicted durations of actions, the pace of shares, and what is kept of a budget for the return."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horologe_common import wire
from horologe_common.clock import NEVER_NS, ms, s, us
from horologe_common.core.instruments import AGE_NS, RollingQuantile
from horologe_controller.core.cluster.dynamic_pace import PACE_BATCHES, DynamicPace
from horologe_controller.core.cluster.estimates import (
    ENOUGH,
    PROFILE_PART,
    TRIAL_EXECS,
    TRIAL_NS,
    Estimate,
    ShareTrials,
    new_pace,
)
from horologe_controller.core.cluster.lane import Action
from horologe_controller.core.cluster.message_latency import MessageLatency
from horologe_controller.core.cluster.prediction_source import PredictionSource
from horologe_controller.core.cluster.share import ClusterChanges, ModelResidency, Share

FAST_NS, SLOW_NS, BUDGET_NS = ms(5), ms(85), ms(40)


def an_estimate(*took_ns: int, now_ns: int = 0) -> Estimate:
    """Return an estimate with profiles of 5 ms and 9 ms, and these measurements of batches of one."""
    pace = RollingQuantile(age_ns=s(10), quantile=0.5)
    for _ in range(5):
        pace.observe(now_ns, 1000)
    estimate = Estimate({0: ms(4), 1: FAST_NS, 2: ms(9)}, pace)
    for one_ns in took_ns:
        estimate.observe(now_ns, 1, one_ns)
    return estimate


def first_trial_ns(estimate: Estimate, size: int = 1, within_ns: int = BUDGET_NS, from_ns: int = 0) -> int | None:
    """Return when a trial is allowed, with a request every millisecond; None if there is none within a minute."""
    times = range(from_ns, from_ns + s(60), ms(1))
    return next((at_ns for at_ns in times if estimate.allow_trial(at_ns, size, within_ns)), None)


def test_two_slow_actions_in_ten_change_the_estimate_and_one_does_not() -> None:
    estimate = an_estimate(*[FAST_NS] * 9, SLOW_NS)
    assert estimate.predict(1, 1) == FAST_NS
    estimate.observe(1, 1, SLOW_NS)
    assert estimate.predict(2, 1) == SLOW_NS


def test_a_trial_follows_slow_actions_after_a_multiple_of_their_duration() -> None:
    estimate = an_estimate(*[FAST_NS] * 8, SLOW_NS, SLOW_NS)
    at_ns = first_trial_ns(estimate)
    assert at_ns == TRIAL_EXECS * SLOW_NS
    assert estimate.predict(at_ns, 1) == estimate.typical(at_ns, 1) == FAST_NS
    assert not estimate.allow_trial(at_ns, 1, BUDGET_NS), "one at a time"
    assert estimate.predict(at_ns + BUDGET_NS + 1, 1) == SLOW_NS, "of a trial nothing was heard"


def test_a_successful_trial_discards_slow_measurements() -> None:
    estimate = an_estimate(*[FAST_NS] * 8, SLOW_NS, SLOW_NS)
    at_ns = first_trial_ns(estimate)
    assert at_ns is not None
    estimate.observe(at_ns + ms(6), 1, ms(6))
    assert estimate.predict(at_ns + ms(6), 1) == ms(6)


def test_a_failed_trial_is_not_repeated_at_once_nor_if_most_actions_are_slow() -> None:
    estimate, at_ns = an_estimate(*[FAST_NS] * 6, SLOW_NS, SLOW_NS), 0
    for _ in range(4):
        found_ns = first_trial_ns(estimate, from_ns=at_ns)
        assert found_ns is not None
        assert found_ns >= at_ns + TRIAL_EXECS * SLOW_NS
        at_ns = found_ns + SLOW_NS
        estimate.observe(at_ns, 1, SLOW_NS)
        assert estimate.predict(at_ns, 1) == SLOW_NS
    assert not any(estimate.allow_trial(at_ns + ms(late), 1, BUDGET_NS) for late in range(1500)), (
        "most have become slow"
    )


def test_a_single_slow_measurement_falls_back_to_the_profile_and_a_second_one_counts() -> None:
    estimate = an_estimate(SLOW_NS)
    assert estimate.predict(1, 1) == estimate.typical(1, 1) == FAST_NS
    estimate.observe(1, 1, SLOW_NS)
    assert estimate.predict(2, 1) == SLOW_NS


def test_a_slow_measurement_among_a_few_falls_back_to_the_others() -> None:
    assert an_estimate(ms(7), ms(6), SLOW_NS).predict(1, 1) == ms(7)
    assert an_estimate(ms(7), SLOW_NS, ms(6), SLOW_NS).predict(1, 1) == SLOW_NS
    assert an_estimate(*[FAST_NS] * 9, SLOW_NS).predict(AGE_NS + 1, 1) == FAST_NS, "the others are too old"


def test_the_first_measurement_of_a_model_without_a_measured_profile_counts() -> None:
    pace = new_pace(NEVER_NS)
    estimate = Estimate({0: ms(4), 1: FAST_NS, 2: ms(9)}, pace, first_run_ns=s(30))
    estimate.observe(0, 1, SLOW_NS)
    assert estimate.predict(1, 1) == SLOW_NS
    assert estimate.predict(1, 2) == SLOW_NS * 9 // 5


def test_a_single_slow_exec_does_not_slow_the_other_models_of_a_share() -> None:
    pace = new_pace()
    first, second = (Estimate({0: ms(4), 1: FAST_NS}, pace) for _ in range(2))
    first.observe(0, 1, SLOW_NS)
    assert second.predict(1, 1) == FAST_NS
    first.observe(1, 1, SLOW_NS)
    assert second.predict(2, 1) == SLOW_NS


def test_slow_batches_that_a_stall_explains_do_not_count_unless_there_are_many_in_a_row() -> None:
    estimate = an_estimate(FAST_NS, FAST_NS)
    for _ in range(ENOUGH):
        assert not estimate.observe(1, 1, SLOW_NS, stalled=True)
    assert estimate.observe(1, 1, FAST_NS, stalled=True), "as long as predicted"
    for _ in range(ENOUGH):
        assert not estimate.observe(1, 1, SLOW_NS, stalled=True)
    assert estimate.predict(2, 1) == FAST_NS
    assert [estimate.observe(2, 1, SLOW_NS, stalled=True) for _ in range(2)] == [True, False]


def test_a_profile_that_refuses_everything_is_tried_now_and_then() -> None:
    estimate, since_ns = an_estimate(), 0
    for failed in range(5):
        at_ns = first_trial_ns(estimate, within_ns=ms(2), from_ns=since_ns)
        assert at_ns == max(since_ns + (TRIAL_NS << failed), bool(failed) * (since_ns + AGE_NS + ms(1)))
        assert estimate.predict(at_ns, 1) == FAST_NS // PROFILE_PART
        since_ns = at_ns + FAST_NS
        estimate.observe(since_ns, 1, FAST_NS)
        assert estimate.predict(since_ns, 1) == FAST_NS


def test_a_trial_needs_a_quarter_of_the_profile() -> None:
    assert first_trial_ns(an_estimate(), within_ns=FAST_NS // PROFILE_PART - 1) is None


def test_where_a_profile_was_too_long_requests_try_at_once_from_then_on() -> None:
    estimate = an_estimate()
    at_ns = first_trial_ns(estimate, within_ns=ms(2))
    assert at_ns is not None
    estimate.observe(at_ns + ms(1), 1, ms(1))
    assert estimate.predict(at_ns + ms(1), 1) == ms(1)
    assert estimate.allow_trial(at_ns + s(10), 1, ms(2)), "it is not measured any more, and the profile is as it was"


def test_sizes_that_were_not_run_are_as_much_faster_than_profiled_as_those_that_were() -> None:
    estimate = an_estimate(ms(2.5), ms(2), ms(2.5))
    assert estimate.predict(1, 2) == ms(4.5)
    assert estimate.predict(1, 0) == ms(4), "LOAD is another lane"
    assert estimate.predict(s(3), 2) == ms(9)


def test_failed_trials_of_one_model_delay_those_of_others_on_the_share() -> None:
    pace, trials = RollingQuantile(age_ns=s(10), quantile=0.5), ShareTrials()
    first, second = (Estimate({0: ms(4), 1: FAST_NS}, pace, "", trials) for _ in range(2))
    at_ns = first_trial_ns(first, within_ns=ms(2))
    assert at_ns == TRIAL_NS
    first.observe(at_ns + FAST_NS, 1, FAST_NS)
    assert not second.allow_trial(0, 1, ms(2))
    assert first_trial_ns(second, within_ns=ms(2), from_ns=at_ns) == at_ns + TRIAL_NS
    second.observe(at_ns + TRIAL_NS + ms(1), 1, ms(1))
    assert trials.next_ns == 0


def after_batches(*ratios: float, spread: float = 0.05) -> DynamicPace:
    """Return a pace after batches of 10 ms that took these multiples of the expected time."""
    pace = DynamicPace()
    for number, ratio in enumerate(ratios):
        pace.observe(ms(10 * number), int(ratio * ms(10)), ms(10), spread)
    return pace


def test_without_batches_the_profile_counts() -> None:
    assert DynamicPace().at(0) == 1.0


def test_a_slower_device_shows_after_a_few_batches() -> None:
    assert after_batches(*[3.0] * 8).at(ms(80)) == pytest.approx(3.0, rel=0.2)
    assert after_batches(*[3.0] * 4 * PACE_BATCHES).at(ms(10 * 4 * PACE_BATCHES)) == pytest.approx(3.0, rel=0.02)


def test_one_stall_is_not_a_slow_device() -> None:
    assert after_batches(1.0, 1.0, 20.0).at(ms(30)) < 1.5
    assert after_batches(20.0).at(ms(10)) < 1.5


def test_batches_whose_time_is_hard_to_predict_say_little() -> None:
    certain, uncertain = (after_batches(2.0, 2.0, spread=spread).at(ms(20)) for spread in (0.0, 1.0))
    assert 1.0 < uncertain < 1.1 < certain


def test_it_is_dropped_where_no_batch_shows_a_recovery() -> None:
    pace = after_batches(*[3.0] * PACE_BATCHES)
    end_ns = ms(10 * (PACE_BATCHES - 1))
    assert pace.at(end_ns + TRIAL_NS) > 2.0
    assert pace.at(end_ns + TRIAL_NS + 1) == 1.0
    pace.observe(end_ns + s(5), ms(10), ms(10), 0.05)
    assert pace.at(end_ns + s(5)) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("budget_ms", "least_ms", "reserved_ms"),
    [
        pytest.param(100, 10, 1.5, id="time to spare: return latency and margin"),
        pytest.param(14.5, 10, 1, id="4 ms to wait: half of the margin"),
        pytest.param(10.5, 10, 0.5, id="no time to wait: no margin"),
        pytest.param(9, 10, 0.5, id="too late anyway"),
        pytest.param(4, 0, 0.9375, id="nothing known of the model"),
        pytest.param(1, 0, 0.25, id="a quarter at most"),
    ],
)
def test_the_margin_shrinks_with_the_time_to_wait(budget_ms: float, least_ms: float, reserved_ms: float) -> None:
    latency = MessageLatency()
    assert latency.reserved_ns(0, ms(budget_ms), ms(least_ms), us(500), ms(1)) == ms(reserved_ms)


def test_the_margin_covers_batches_that_take_longer_than_predicted() -> None:
    latency = MessageLatency()
    share = Share("w", wire.Share(0, "d", 10), 0, ModelResidency(ClusterChanges()), latency)
    for number in range(200):
        start_ns = number * ms(20)
        end_ns = start_ns + ms(10) + (ms(3) if number % 50 == 0 else 0)
        action = Action(number, share, "m", 1, [], start_ns, start_ns, ms(10))
        latency.observe(end_ns, action, start_ns, end_ns)
    assert latency.reserved_ns(end_ns, ms(100), ms(10), 0, ms(1)) == ms(3)


times = st.integers(0, ms(100))


@given(times, times, times, times)
def test_a_request_that_could_be_in_time_without_a_margin_still_can(
    budget_ns: int, least_ns: int, return_ns: int, margin_ns: int
) -> None:
    reserved_ns = MessageLatency().reserved_ns(0, budget_ns, least_ns, return_ns, margin_ns)
    assert 0 <= reserved_ns <= min(return_ns + margin_ns, budget_ns / 4)
    if least_ns + return_ns <= budget_ns:
        assert least_ns + reserved_ns <= budget_ns


def test_the_source_of_a_prediction_is_the_one_that_it_was_made_of() -> None:
    estimate = an_estimate()
    assert estimate.source(1, 1) == PredictionSource("profile")
    for took_ns in (ms(5), ms(6), ms(70)):
        estimate.observe(1, 1, took_ns)
    assert estimate.predict(1, 1) == ms(6)
    assert estimate.source(1, 1) == PredictionSource("executions", [ms(5), ms(6)], ms(70)), "a single outlier"
    estimate.observe(1, 1, ms(60))
    assert estimate.source(1, 1) == PredictionSource("executions", [ms(5), ms(6), ms(70), ms(60)]), "it is not alone"


def test_the_profile_is_the_source_where_the_only_execution_is_left_out() -> None:
    estimate = an_estimate(ms(70))
    assert estimate.predict(1, 1) == FAST_NS
    assert estimate.source(1, 1) == PredictionSource("profile", [], ms(70))


@pytest.mark.parametrize(("took_ns", "pace"), [(ms(15), 3000), (ms(3), 600)])
def test_the_source_of_another_size_is_the_profile_at_the_pace(took_ns: int, pace: int) -> None:
    estimate = an_estimate(*[took_ns] * 10)
    assert estimate.predict(1, 2) == ms(9) * pace // 1000
    assert estimate.source(1, 2) == PredictionSource("profile", pace_permille=pace)


def test_a_trial_and_a_guess_are_sources_of_their_own() -> None:
    estimate = an_estimate(*[FAST_NS] * 8, SLOW_NS, SLOW_NS)
    at_ns = first_trial_ns(estimate)
    assert at_ns
    assert estimate.source(at_ns, 1).kind == "trial"
    estimate.observe(at_ns + FAST_NS, 1, SLOW_NS)
    assert estimate.source(at_ns + FAST_NS, 1).kind == "executions"
    assert Estimate({1: FAST_NS}, new_pace(), first_run_ns=s(30)).source(0, 1).kind == "guess"
