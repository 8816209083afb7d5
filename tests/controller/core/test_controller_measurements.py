"""Measurements of the controller: estimates of durations, and errors of predictions."""

from __future__ import annotations

from controller.controller_builders import WORKER, a_controller, finish, submit
from harness.builders import sent
from horologe_common.clock import ms
from horologe_common.status import Status
from horologe_common.wire import (
    Infer,
    Result,
    RowStatus,
)


def test_a_batch_with_rows_missing_says_nothing_of_a_full_one() -> None:
    controller = a_controller(in_flight=1)
    for number in range(10, 130, 10):
        submit(controller, number, number + 1, number + 2, number + 3, now_ns=number * ms(10))
        (infer,) = sent(controller, Infer)
        assert (infer.batch_size, infer.expected_ns) == (4, ms(3.5))
        end_ns = number * ms(10) + ms(1)
        rows = tuple(RowStatus(place, 0, Status.FAILED) for place in (1, 2, 3))
        controller.handle(end_ns, WORKER, Result(infer.action_id, Status.OK, end_ns - ms(1), end_ns, rows=rows), ())
        controller.tick(end_ns)
    controller.refresh_stats()
    assert controller.stats.values["nv_inference_count", "sum", "1"] == 12, "those that were run"
    for side in ("over", "under"):
        assert ("horologe_prediction_error_seconds", "infer", side) not in controller.stats.histograms


def test_estimates_follow_the_measurements() -> None:
    controller = a_controller(in_flight=1)
    for number in range(1, 12):
        now_ns = number * ms(200)
        submit(controller, number, now_ns=now_ns)
        (infer,) = sent(controller, Infer)
        controller.handle(now_ns + ms(9), WORKER, Result(infer.action_id, Status.OK, now_ns, now_ns + ms(8)), ())
        controller.tick(now_ns + ms(9))
    submit(controller, 50, now_ns=ms(2300))
    assert sent(controller, Infer)[0].expected_ns == ms(8)


def test_a_late_start_is_an_error_of_completion_and_none_of_duration() -> None:
    controller = a_controller()
    controller.stats.histograms.clear()
    submit(controller, 1)
    (infer,) = sent(controller, Infer)
    finish(controller, infer, infer.expected_ns + ms(3))
    found = {key: (one.total, one.sum) for key, one in controller.stats.histograms.items() if len(key) == 3}
    assert found["horologe_prediction_error_seconds", "infer", "over"] == (1, 0)
    assert found["horologe_completion_error_seconds", "infer", "under"] == (1, ms(3))


def test_completion_errors_are_measured_against_the_first_prediction() -> None:
    """The first INFER is late, so the second is late as well, although its duration is as predicted."""
    controller = a_controller(scheduler="clockwork", in_flight=2, lookahead_ns=ms(50))
    controller.stats.histograms.clear()
    submit(controller, 1)
    submit(controller, 2)
    first, second = sent(controller, Infer)
    end_ns = first.expected_ns + ms(2)
    controller.handle(end_ns, WORKER, Result(first.action_id, Status.OK, 0, end_ns), ())
    finish(controller, second, end_ns + second.expected_ns)
    late = controller.stats.histograms["horologe_completion_error_seconds", "infer", "under"]
    assert (late.total, late.sum) == (2, 2 * ms(2))
    assert controller.stats.histograms["horologe_prediction_error_seconds", "infer", "under"].total == 1
