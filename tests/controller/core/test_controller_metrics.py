"""Metrics of the controller: workers, clocks, resident models, queue age, slack, and predicted against actual time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from controller.controller_builders import MODEL, WORKER, a_controller, a_new_controller, finish, register, submit, tick
from harness.builders import a_report, sent
from horologe_common.clock import ms, s, us
from horologe_common.core.protocol import PeerDisconnected
from horologe_common.models import PAGE_BYTES
from horologe_common.status import Status
from horologe_common.wire import Drain, Infer, Pong, Result, RowStatus

if TYPE_CHECKING:
    from horologe_controller.core.controller import Controller


def with_worker(host: str = "host") -> Controller:
    """Return a controller with a worker on `host` that holds the model `sum`."""
    controller = a_new_controller(workers=3)
    join_with_model(controller, 0, WORKER, host)
    return controller


def join_with_model(controller: Controller, now_ns: int, worker: str, host: str = "host") -> None:
    register(controller, a_report(), worker=worker, resident=(MODEL,), host=host, now_ns=now_ns)


def read(controller: Controller, now_ns: int) -> dict[tuple[str, ...], Any]:
    """Return all values at this time."""
    controller.tick(now_ns)
    controller.refresh_stats()
    return controller.stats.values


def test_workers_are_counted_by_state() -> None:
    controller = with_worker()
    values = read(controller, 1)
    states = {state: values["horologe_workers", state] for state in ("ready", "draining", "unreachable")}
    assert states == {"ready": 1, "draining": 0, "unreachable": 0}
    assert values["horologe_workers_expected",] == 3
    join_with_model(controller, 2, "worker/1#1", "elsewhere")
    controller.handle(3, WORKER, Drain(), ())
    values = read(controller, 4)
    states = {state: values["horologe_workers", state] for state in ("ready", "draining", "unreachable")}
    assert states == {"ready": 0, "draining": 1, "unreachable": 1}


def test_a_worker_is_lost_until_another_connects_unless_it_drained() -> None:
    controller = with_worker()
    join_with_model(controller, 1, "worker/1#1")
    lost = "horologe_workers", "lost"
    assert read(controller, 2)[lost] == 0
    controller.handle(3, WORKER, PeerDisconnected(WORKER), ())
    assert read(controller, 4)[lost] == 1
    join_with_model(controller, 5, "worker/0#2")
    assert read(controller, 6)[lost] == 0
    join_with_model(controller, 7, "worker/2#1")
    controller.handle(8, "worker/1#1", Drain(), ())
    controller.handle(9, "worker/1#1", PeerDisconnected("worker/1#1"), ())
    assert read(controller, 10)[lost] == 0, "drained"


def test_a_restarted_worker_has_a_clock_series_of_its_own() -> None:
    controller = with_worker("elsewhere")
    clock = "horologe_clock_offset_seconds", "worker/0"
    assert (*clock, "1") not in read(controller, 1), "not measured yet"
    controller.handle(us(200), WORKER, Pong(0, s(5) + us(100)), ())
    values = read(controller, us(200))
    assert values[(*clock, "1")] == 5
    assert values["horologe_clock_error_seconds", "worker/0", "1"] == 100e-6
    controller.handle(ms(1), WORKER, PeerDisconnected(WORKER), ())
    join_with_model(controller, ms(2), "worker/0#2", "elsewhere")
    controller.handle(ms(3), "worker/0#2", Pong(ms(2), s(900)), ())
    values = read(controller, ms(4))
    assert (*clock, "1") not in values
    assert values[(*clock, "2")] > 800


def test_resident_models_have_bytes_and_shares() -> None:
    controller = with_worker()
    values = read(controller, 1)
    pages = controller.cluster.specs["sum/1"].pages
    assert values["horologe_model_resident_bytes", "sum", "1"] == pages * PAGE_BYTES > 0
    assert values["horologe_model_resident_shares", "sum", "1"] == 1
    controller.handle(2, WORKER, PeerDisconnected(WORKER), ())
    values = read(controller, 3)
    assert values.get(("horologe_model_resident_bytes", "sum", "1"), 0) == 0


def test_queue_age_is_that_of_the_oldest_queued_request_with_a_deadline() -> None:
    controller = with_worker()
    age = ("horologe_oldest_request_seconds",)
    assert read(controller, 1)[age] == 0
    for number in range(20):
        submit(controller, number, now_ns=ms(1), budget_ms=5000)
    submit(controller, 99, now_ns=ms(2), budget_ms=5000, best_effort=True)
    assert 0 < read(controller, ms(3))[age] <= 2e-3
    slack = controller.stats.histograms["horologe_admission_slack_seconds",]
    assert slack.total == 20, "best effort has no deadline"
    assert slack.quantile(1) > s(4)


def test_actual_and_predicted_time_of_batches_are_added_up() -> None:
    controller = with_worker()
    submit(controller, 1, now_ns=ms(1), budget_ms=500)
    (infer,) = sent(controller, Infer)
    took_ns = 2 * infer.expected_ns
    controller.handle(s(1), WORKER, Result(infer.action_id, Status.OK, s(1) - took_ns, s(1)), ())
    values = read(controller, s(1))
    assert values["horologe_exec_seconds_total", "sum", "1"] == took_ns / 1e9
    assert values["horologe_expected_exec_seconds_total", "sum", "1"] == infer.expected_ns / 1e9
    assert values["nv_inference_compute_infer_duration_us", "sum", "1"] == took_ns // 1000


def test_an_action_with_a_status_of_a_newer_worker_counts_as_failed_and_its_requests_are_retried() -> None:
    controller = with_worker()
    submit(controller, 1, now_ns=ms(1), budget_ms=500)
    (infer,) = sent(controller, Infer)
    controller.handle(ms(2), WORKER, Result(infer.action_id, max(Status) + 1, ms(1), ms(2)), ())
    tick(controller, ms(2))
    assert len(sent(controller, Infer)) == 1
    assert read(controller, ms(2))["horologe_actions_total", "infer", "FAILED"] == 1


def test_a_batch_with_rows_missing_says_nothing_of_a_full_one() -> None:
    controller = a_controller(in_flight=1)
    for number in range(10, 130, 10):
        submit(controller, number, number + 1, number + 2, number + 3, now_ns=number * ms(10))
        (infer,) = sent(controller, Infer)
        assert (infer.batch_size, infer.expected_ns) == (4, ms(3.5))
        end_ns = number * ms(10) + ms(1)
        rows = tuple(RowStatus(place, 0, Status.FAILED) for place in (1, 2, 3))
        finish(controller, infer, end_ns, rows=rows)
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
