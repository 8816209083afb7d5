"""The tuner compares schedulers by rehearsals: when it starts one, and when it changes the scheduler."""

from __future__ import annotations

from typing import Any

from harness.builders import a_report, a_spec, sent
from horologe_common.clock import ms, s
from horologe_common.core.protocol import PeerConnected, PeerDisconnected
from horologe_common.wire import (
    DescribeScheduling,
    Events,
    ModelEvents,
    RequestTrace,
    ScheduledModel,
    ScheduledShare,
    SchedulingState,
    TracedRequest,
    UseScheduler,
)
from horologe_tuner.core.rehearsal.rehearsal_documents import RehearsalCall, RehearsalScores
from horologe_tuner.core.rehearsal.rehearsals import DEFAULT, LEAST_REQUESTS, NEW_REQUESTS
from tuner.rehearsal_scores import scores_of
from tuner.tuner_bench import CONTROLLER, Bench

STATE = SchedulingState({"scheduler": "horologe"}, (ScheduledModel(a_report(a_spec("m"))),), (ScheduledShare(64),))


class RehearsalBench(Bench):
    """A tuner with a controller that sends traces."""

    def __init__(self, rehearses: bool = True, **settings: Any) -> None:
        super().__init__(rehearses=rehearses, **{"scaler": "none", "rehearsal_interval_ns": s(10), **settings})

    def trace(self, count: int = LEAST_REQUESTS) -> None:
        """Send the requests of the last ten seconds."""
        ages_ns = (s(10) * number // count for number in reversed(range(count)))
        rows = tuple(TracedRequest(0, self.now_ns - age_ns, ms(50)) for age_ns in ages_ns)
        self.give(CONTROLLER, RequestTrace(("m/1",), rows))

    def wait(self, seconds: float) -> None:
        self.now_ns += s(seconds)
        self.run()

    def started(self) -> list[RehearsalCall]:
        """Answer the question for the state, and return the calls of the process."""
        for _ in sent(self.tuner, DescribeScheduling, CONTROLLER):
            self.give(CONTROLLER, STATE)
        return sent(self.tuner, RehearsalCall, self.tuner.rehearsal)

    def score(self, scores: RehearsalScores) -> list[UseScheduler]:
        self.give(self.tuner.rehearsal, scores)
        return sent(self.tuner, UseScheduler, CONTROLLER)

    def rehearse(self, scores: RehearsalScores) -> list[UseScheduler]:
        self.wait(10)
        self.trace()
        assert len(self.started()) == 1
        return self.score(scores)

    def change(self, scores: RehearsalScores) -> UseScheduler:
        """Return the change after two rehearsals with these scores."""
        assert self.rehearse(scores) == []
        (change,) = self.rehearse(scores)
        return change

    def ended(self, number: int, in_time: int, refused: int) -> list[UseScheduler]:
        """Report that requests have ended."""
        models = (ModelEvents("m/1", (), in_time, refused),)
        self.give(CONTROLLER, Events(number, ms(100), ms(10), models))
        return sent(self.tuner, UseScheduler, CONTROLLER)


def test_a_rehearsal_starts_with_enough_requests() -> None:
    bench = RehearsalBench()
    bench.trace(LEAST_REQUESTS - 1)
    bench.wait(11)
    assert not bench.started()
    bench.trace(1)
    (call,) = bench.started()
    assert len(call.trace.requests) >= LEAST_REQUESTS
    assert call.candidates[0] == DEFAULT
    bench.wait(100)
    assert not bench.started()  # the first one still runs


def test_the_pause_is_as_long_as_the_requests_took_until_it_is_the_interval() -> None:
    bench = RehearsalBench(rehearsal_interval_ns=s(20))
    bench.trace()
    assert len(bench.started()) == 1
    bench.score(scores_of(horologe=90))
    bench.wait(9)
    bench.trace()
    assert not bench.started()
    bench.wait(1)
    assert len(bench.started()) == 1


def test_the_same_requests_are_not_played_again() -> None:
    bench = RehearsalBench()
    bench.rehearse(scores_of(horologe=90))
    bench.wait(30)
    assert not bench.started()
    bench.trace(NEW_REQUESTS)
    assert len(bench.started()) == 1


def test_scores_change_the_scheduler_and_the_reason_is_logged() -> None:
    bench = RehearsalBench()
    change = bench.change(scores_of(horologe=90, orloj=95))
    assert change.scheduler == "orloj"
    assert change.reason == "orloj would have served 95.00% of the last 1,900 requests, horologe 90.00%"
    (entry,) = bench.journal
    assert (entry.event, entry.text) == ("scheduler changed", change.reason)
    assert bench.rehearse(scores_of(horologe=90, orloj=95)) == []
    (back,) = bench.rehearse(scores_of(horologe=95, orloj=95))
    assert (back.scheduler, back.settings) == ("horologe", {})
    status = bench.tuner.describe(bench.now_ns).rehearsal
    assert status is not None
    assert (status.scheduler, status.served) == ("horologe", {"horologe": 0.95, "orloj": 0.95})


def test_the_default_returns_at_once_when_the_traffic_is_not_the_rehearsed_one() -> None:
    bench = RehearsalBench()
    bench.change(scores_of(horologe=90, orloj=95))
    assert bench.ended(1, 186, 14) == []
    (change,) = bench.ended(2, 90, 50)
    assert (change.scheduler, change.settings) == ("horologe", {})
    assert change.reason == "orloj serves 81.18% of the requests, in its rehearsal at least 95.00%"
    assert bench.ended(3, 0, 500) == []


def test_requests_from_before_a_change_of_the_traffic_are_not_played() -> None:
    bench = RehearsalBench()
    bench.rehearse(scores_of(horologe=90))
    bench.ended(1, 100, 100)
    bench.trace(LEAST_REQUESTS - 1)
    assert not bench.started()
    bench.trace(1)
    (call,) = bench.started()
    assert len(call.trace.requests) == LEAST_REQUESTS
    bench.ended(2, 200, 0)  # no rehearsal of this traffic has ended
    assert bench.score(scores_of(horologe=90, orloj=95)) == []
    (change,) = bench.rehearse(scores_of(horologe=90, orloj=95))
    assert change.scheduler == "orloj"


def test_a_scheduler_that_serves_more_than_in_its_rehearsal_stays_until_the_next_one() -> None:
    bench = RehearsalBench()
    bench.change(scores_of(horologe=50, orloj=60))
    assert bench.ended(1, 180, 20) == []
    bench.trace(LEAST_REQUESTS)
    (call,) = bench.started()
    assert len(call.trace.requests) == LEAST_REQUESTS
    (change,) = bench.score(scores_of(horologe=90, orloj=90))
    assert change.scheduler == "horologe"


def test_scores_of_discarded_requests_change_nothing() -> None:
    bench = RehearsalBench()
    bench.rehearse(scores_of(horologe=90))
    bench.wait(10)
    bench.trace()
    assert len(bench.started()) == 1
    bench.ended(1, 100, 100)
    assert bench.score(scores_of(horologe=90, orloj=95)) == []


def test_a_replay_that_differs_from_what_was_served_changes_nothing() -> None:
    bench = RehearsalBench()
    bench.wait(10)
    bench.ended(1, 150, 150)
    bench.trace()
    assert len(bench.started()) == 1
    assert bench.score(scores_of(horologe=90, orloj=95)) == []
    bench.wait(61)  # the first requests are no longer played
    bench.ended(2, 270, 30)
    bench.trace()
    assert len(bench.started()) == 1
    (change,) = bench.score(scores_of(horologe=90, orloj=95))
    assert change.scheduler == "orloj"


def test_only_what_the_scheduler_in_use_has_served_is_compared_with_its_replay() -> None:
    bench = RehearsalBench()
    bench.change(scores_of(horologe=90, orloj=99))
    bench.wait(5)
    bench.ended(1, 297, 3)
    bench.wait(5)
    bench.trace()
    assert len(bench.started()) == 1
    assert bench.score(scores_of(horologe=50, orloj=(50,) * 11 + (99,) * 8)) == []


def test_the_current_scheduler_is_played_first() -> None:
    bench = RehearsalBench()
    bench.change(scores_of(horologe=90, edf=95))
    bench.trace()
    bench.wait(10)
    (call,) = bench.started()
    assert [candidate.name for candidate in call.candidates[:2]] == ["horologe", "edf"]


def test_rehearsals_have_a_part_of_a_core() -> None:
    bench = RehearsalBench(rehearsal_share=0.25)
    bench.rehearse(scores_of(cpu_s=5.0, horologe=90))
    bench.trace()
    bench.wait(19)
    assert not bench.started()
    bench.wait(1)
    (call,) = bench.started()
    assert call.cpu_s == 15.0


def test_a_rehearsal_that_fails_is_logged_once_and_the_default_returns() -> None:
    bench, failed = RehearsalBench(), RehearsalScores(error="no memory")
    assert bench.rehearse(failed) == bench.rehearse(failed) == []
    (entry,) = bench.journal
    assert (entry.event, entry.text) == ("rehearsal failed", "no memory")
    bench.change(scores_of(horologe=90, edf=95))
    (change,) = bench.rehearse(failed)
    assert (change.scheduler, change.reason) == ("horologe", "the rehearsal failed: no memory")
    assert bench.rehearse(failed) == []


def test_metrics_are_those_of_the_last_rehearsal_and_counters_start_at_zero() -> None:
    bench = RehearsalBench()
    counted, served = "horologe_tuner_rehearsals_total", "horologe_tuner_rehearsal_served"

    def values(name: str) -> dict[str, float]:
        return {key[1]: value for key, value in bench.tuner.stats.values.items() if key[0] == name}

    assert values(counted) == {"kept": 0, "changed": 0, "failed": 0}
    bench.rehearse(scores_of(horologe=90, orloj=95))
    assert values(served) == {"horologe": 0.9, "orloj": 0.95}
    bench.rehearse(scores_of(horologe=80, orloj=95, edf=40))
    bench.rehearse(scores_of(horologe=85, orloj=95))
    assert values(served) == {"horologe": 0.85, "orloj": 0.95}
    bench.rehearse(RehearsalScores(error="no memory"))
    assert values(served) == {}
    assert values(counted) == {"kept": 2, "changed": 2, "failed": 1}


def test_in_a_dry_run_changes_are_only_reported() -> None:
    bench = RehearsalBench(dry_run=True)
    assert bench.rehearse(scores_of(horologe=90, orloj=95)) == []
    assert bench.rehearse(scores_of(horologe=90, orloj=95)) == []
    (entry,) = bench.journal
    assert entry.dry_run


def test_without_a_simulator_nothing_is_rehearsed() -> None:
    bench = RehearsalBench(rehearses=False)
    bench.trace()
    bench.wait(100)
    assert not bench.started()
    assert bench.tuner.wakeup_ns() is None


def test_scores_for_a_controller_that_has_left_are_discarded() -> None:
    bench = RehearsalBench()
    bench.trace()
    bench.wait(10)
    bench.started()
    bench.give(CONTROLLER, PeerDisconnected(CONTROLLER))
    assert bench.score(scores_of(horologe=90, orloj=95)) == []
    bench.give(CONTROLLER, PeerConnected(CONTROLLER))
    assert bench.change(scores_of(horologe=90, orloj=95)).scheduler == "orloj"
