"""Backoff of refused LOADs: growing pauses, and refusal of requests that only such a worker could serve."""

from __future__ import annotations

from harness.builders import a_report, a_spec, sent
from horologe_common.clock import ms, s
from horologe_common.core.protocol import PeerConnected
from horologe_common.status import Status
from horologe_common.wire import Infer, Load, Outcome, Register, Result, Share, Submit
from horologe_controller.core.cluster.share import LoadBackoff
from horologe_controller.core.controller import Controller
from horologe_controller.settings import ControllerSettings

WORKERS = "worker/0#1", "worker/1#1"
REPORTS = (a_report(), a_report(a_spec("other")))


def a_controller(workers: int = 1, backoff: LoadBackoff | None = None) -> Controller:
    """Return a controller that does not preload, with connected workers."""
    controller = Controller(
        "controller/0#1", ControllerSettings(margin_ns=0, preload=False, workers=1), "host", backoff
    )
    controller.handle(0, "selector/0#1", PeerConnected("selector/0#1", "host"), ())
    for worker in WORKERS[:workers]:
        controller.handle(0, worker, PeerConnected(worker, "host"), ())
        register(controller, worker, 0)
    return controller


def register(controller: Controller, worker: str, now_ns: int) -> None:
    controller.handle(now_ns, worker, Register((Share(0, "cpu", 64),), REPORTS), ())
    controller.tick(now_ns)


def submit(controller: Controller, number: int, now_ns: int, budget_ms: float, model: str = "sum/1") -> None:
    message = Submit(number, model, ms(budget_ms), 1, "frontend/0#1", number)
    controller.handle(now_ns, "selector/0#1", message, ())
    controller.tick(now_ns)
    controller.check()


def answer(controller: Controller, load: Load, now_ns: int, status: Status, worker: str = WORKERS[0]) -> None:
    controller.handle(now_ns, worker, Result(load.action_id, status, now_ns, now_ns, reason="busy"), ())
    controller.tick(now_ns)
    controller.check()


def refuse_until(controller: Controller, end_ns: int, status: Status = Status.REFUSED) -> list[int]:
    """Run until `end_ns`, refuse every LOAD at once, and return the times of the LOADs."""
    asked_ns, now_ns = [], 0
    while now_ns <= end_ns:
        for load in sent(controller, Load):
            asked_ns.append(now_ns)
            answer(controller, load, now_ns, status)
        wake_ns = controller.wakeup_ns()
        assert wake_ns is not None
        assert wake_ns > now_ns
        now_ns = wake_ns
        controller.tick(now_ns)
    return asked_ns


def test_the_pauses_grow_up_to_a_limit() -> None:
    for status in (Status.REFUSED, Status.TOO_LATE):
        controller = a_controller(backoff=LoadBackoff(ms(10), ms(50)))
        submit(controller, 1, 0, 60_000)
        asked_ns = refuse_until(controller, ms(300), status)
        assert asked_ns == [ms(at) for at in (0, 10, 30, 70, 120, 170, 220, 270)]


def test_another_model_is_loaded_meanwhile() -> None:
    controller = a_controller()
    submit(controller, 1, 0, 60_000)
    (load,) = sent(controller, Load)
    answer(controller, load, 0, Status.REFUSED)
    submit(controller, 2, ms(1), 60_000, "other/1")
    assert [load.model for load in sent(controller, Load)] == ["other/1"]


def test_a_request_with_time_waits_for_the_next_attempt() -> None:
    controller = a_controller()
    submit(controller, 1, 0, 1_000)
    (load,) = sent(controller, Load)
    answer(controller, load, 0, Status.REFUSED)
    controller.tick(ms(10))
    (load,) = sent(controller, Load)
    answer(controller, load, ms(11), Status.OK)
    assert [infer.model for infer in sent(controller, Infer)] == ["sum/1"]
    assert not sent(controller, Outcome)


def test_a_request_that_cannot_wait_is_refused_with_the_reason() -> None:
    """Both the requests that are queued when the backoff begins and those that arrive during it."""
    controller = a_controller(backoff=LoadBackoff(s(1)))
    submit(controller, 1, 0, 500)
    submit(controller, 2, 0, 5_000)
    (load,) = sent(controller, Load)
    answer(controller, load, ms(1), Status.REFUSED)
    submit(controller, 3, ms(2), 500)
    submit(controller, 4, ms(2), 5_000)
    outcomes = sent(controller, Outcome)
    assert [(one.id, one.status) for one in outcomes] == [(1, Status.REFUSED), (3, Status.REFUSED)]
    assert all("refuse to load" in one.reason and one.reason.endswith("ms late") for one in outcomes)
    assert outcomes[0].retry_after_ns > ms(500)
    assert controller.pending() == 2


def test_another_share_without_refusals_gets_the_load() -> None:
    controller = a_controller(workers=2, backoff=LoadBackoff(s(1)))
    submit(controller, 1, 0, 500)
    (load,) = sent(controller, Load, WORKERS[0])
    answer(controller, load, ms(1), Status.REFUSED)
    assert [load.model for load in sent(controller, Load, WORKERS[1])] == ["sum/1"]
    assert not sent(controller, Outcome)


def test_a_register_ends_the_pause() -> None:
    controller = a_controller(backoff=LoadBackoff(s(1)))
    submit(controller, 1, 0, 60_000)
    (load,) = sent(controller, Load)
    answer(controller, load, 0, Status.REFUSED)
    assert not sent(controller, Load)
    register(controller, WORKERS[0], ms(1))
    (load,) = sent(controller, Load)
    answer(controller, load, ms(2), Status.REFUSED)
    controller.tick(ms(1001))
    assert not sent(controller, Load)
    controller.tick(ms(1002))
    assert len(sent(controller, Load)) == 1, "the first pause again"


def test_a_success_ends_the_growth() -> None:
    controller = a_controller()
    submit(controller, 1, 0, 60_000)
    asked_ns = refuse_until(controller, ms(60))
    assert asked_ns == [0, ms(10), ms(30)]
    controller.tick(ms(70))
    (load,) = sent(controller, Load)
    answer(controller, load, ms(71), Status.OK)
    (share,) = controller.cluster.shares()
    assert not share.load_refusals
    assert not share.load_retry_ns


def test_requeued_requests_do_not_count_as_arrivals() -> None:
    controller = a_controller()
    for number in range(20):
        submit(controller, number, ms(10 * number), 60_000)
    (load,) = sent(controller, Load)
    traffic = controller.scheduler.policy.traffic
    assert traffic is not None
    before_ns = traffic.of_model("sum/1").gap_ns
    answer(controller, load, ms(200), Status.REFUSED)
    assert controller.pending() == 20
    assert traffic.of_model("sum/1").gap_ns == before_ns
