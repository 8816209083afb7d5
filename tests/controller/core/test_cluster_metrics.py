"""Metrics of the controller: workers, clocks, resident models, queue age, slack, and predicted against actual time."""

from __future__ import annotations

from typing import Any

from harness.builders import a_report, sent
from horologe_common.clock import ms, s, us
from horologe_common.core.protocol import PeerConnected, PeerDisconnected
from horologe_common.models import PAGE_BYTES
from horologe_common.status import Status
from horologe_common.wire import Drain, Infer, Pong, Register, Result, Share, Submit
from horologe_controller.core.controller import Controller
from horologe_controller.settings import ControllerSettings

FRONTEND, SELECTOR, WORKER = "frontend/0#1", "selector/0#1", "worker/0#1"


def a_controller(host: str = "host", worker: str = WORKER) -> Controller:
    """Return a controller with a worker on `host` that holds the model `sum`."""
    controller = Controller("controller/0#2", ControllerSettings(workers=3, margin_ns=0, preload=False), "host")
    for address in (FRONTEND, SELECTOR):
        controller.handle(0, address, PeerConnected(address, "host"), ())
    connect(controller, 0, worker, host)
    return controller


def connect(controller: Controller, now_ns: int, worker: str, host: str) -> None:
    controller.handle(now_ns, worker, PeerConnected(worker, host), ())
    controller.handle(now_ns, worker, Register((Share(0, "cpu", 10, ("sum/1",)),), (a_report(),)), ())
    controller.tick(now_ns)


def read(controller: Controller, now_ns: int) -> dict[tuple[str, ...], Any]:
    """Return all values at this time."""
    controller.tick(now_ns)
    controller.refresh_stats()
    return controller.stats.values


def submit(controller: Controller, now_ns: int, number: int, budget_ns: int, **fields: Any) -> None:
    message = Submit(number, "sum/1", budget_ns=budget_ns, rows=1, holder=FRONTEND, input_id=number, **fields)
    controller.handle(now_ns, SELECTOR, message, ())
    controller.tick(now_ns)


def test_workers_are_counted_by_state() -> None:
    controller = a_controller()
    values = read(controller, 1)
    states = {state: values["horologe_workers", state] for state in ("ready", "draining", "unreachable")}
    assert states == {"ready": 1, "draining": 0, "unreachable": 0}
    assert values["horologe_workers_expected",] == 3
    connect(controller, 2, "worker/1#1", "elsewhere")
    controller.handle(3, WORKER, Drain(), ())
    values = read(controller, 4)
    states = {state: values["horologe_workers", state] for state in ("ready", "draining", "unreachable")}
    assert states == {"ready": 0, "draining": 1, "unreachable": 1}


def test_a_worker_is_lost_until_another_connects_unless_it_drained() -> None:
    controller = a_controller()
    connect(controller, 1, "worker/1#1", "host")
    lost = "horologe_workers", "lost"
    assert read(controller, 2)[lost] == 0
    controller.handle(3, WORKER, PeerDisconnected(WORKER), ())
    assert read(controller, 4)[lost] == 1
    connect(controller, 5, "worker/0#2", "host")
    assert read(controller, 6)[lost] == 0
    connect(controller, 7, "worker/2#1", "host")
    controller.handle(8, "worker/1#1", Drain(), ())
    controller.handle(9, "worker/1#1", PeerDisconnected("worker/1#1"), ())
    assert read(controller, 10)[lost] == 0, "drained"


def test_a_restarted_worker_has_a_clock_series_of_its_own() -> None:
    controller = a_controller("elsewhere")
    clock = "horologe_clock_offset_seconds", "worker/0"
    assert (*clock, "1") not in read(controller, 1), "not measured yet"
    controller.handle(us(200), WORKER, Pong(0, s(5) + us(100)), ())
    values = read(controller, us(200))
    assert values[(*clock, "1")] == 5
    assert values["horologe_clock_error_seconds", "worker/0", "1"] == 100e-6
    controller.handle(ms(1), WORKER, PeerDisconnected(WORKER), ())
    connect(controller, ms(2), "worker/0#2", "elsewhere")
    controller.handle(ms(3), "worker/0#2", Pong(ms(2), s(900)), ())
    values = read(controller, ms(4))
    assert (*clock, "1") not in values
    assert values[(*clock, "2")] > 800


def test_resident_models_have_bytes_and_shares() -> None:
    controller = a_controller()
    values = read(controller, 1)
    pages = controller.cluster.specs["sum/1"].pages
    assert values["horologe_model_resident_bytes", "sum", "1"] == pages * PAGE_BYTES > 0
    assert values["horologe_model_resident_shares", "sum", "1"] == 1
    controller.handle(2, WORKER, PeerDisconnected(WORKER), ())
    values = read(controller, 3)
    assert values.get(("horologe_model_resident_bytes", "sum", "1"), 0) == 0


def test_queue_age_is_that_of_the_oldest_queued_request_with_a_deadline() -> None:
    controller = a_controller()
    age = ("horologe_oldest_request_seconds",)
    assert read(controller, 1)[age] == 0
    for number in range(20):
        submit(controller, ms(1), number, s(5))
    submit(controller, ms(2), 99, s(5), best_effort=True)
    assert 0 < read(controller, ms(3))[age] <= 2e-3
    slack = controller.stats.histograms["horologe_admission_slack_seconds",]
    assert slack.total == 20, "best effort has no deadline"
    assert slack.quantile(1) > s(4)


def test_actual_and_predicted_time_of_batches_are_added_up() -> None:
    controller = a_controller()
    submit(controller, ms(1), 1, ms(500))
    (infer,) = sent(controller, Infer)
    took_ns = 2 * infer.expected_ns
    controller.handle(s(1), WORKER, Result(infer.action_id, Status.OK, s(1) - took_ns, s(1)), ())
    values = read(controller, s(1))
    assert values["horologe_exec_seconds_total", "sum", "1"] == took_ns / 1e9
    assert values["horologe_expected_exec_seconds_total", "sum", "1"] == infer.expected_ns / 1e9
    assert values["nv_inference_compute_infer_duration_us", "sum", "1"] == took_ns // 1000
