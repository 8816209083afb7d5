"""Backoff of refused LOADs: growing pauses, and refusal of requests that only such a worker could serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controller.controller_builders import OTHER, WORKER, a_new_controller, finish, register, submit
from harness.builders import a_report, a_spec, sent
from horologe_common.clock import ms, s
from horologe_common.status import Status
from horologe_common.wire import Infer, Load, Outcome
from horologe_controller.core.cluster.load_backoff import LoadBackoff

if TYPE_CHECKING:
    from horologe_controller.core.controller import Controller

REPORTS = (a_report(), a_report(a_spec("other")))


def with_models(*workers: str, backoff: LoadBackoff | None = None) -> Controller:
    """Return a controller that does not preload, with connected workers."""
    controller = a_new_controller(backoff=backoff)
    for worker in workers or (WORKER,):
        register(controller, *REPORTS, worker=worker)
    return controller


def refuse_until(controller: Controller, end_ns: int, status: Status = Status.REFUSED) -> list[int]:
    """Run until `end_ns`, refuse every LOAD at once, and return the times of the LOADs."""
    asked_ns, now_ns = [], 0
    while now_ns <= end_ns:
        for load in sent(controller, Load):
            asked_ns.append(now_ns)
            finish(controller, load, now_ns, status, reason="busy")
        wake_ns = controller.wakeup_ns()
        assert wake_ns is not None
        assert wake_ns > now_ns
        now_ns = wake_ns
        controller.tick(now_ns)
    return asked_ns


def test_the_pauses_grow_up_to_a_limit() -> None:
    for status in (Status.REFUSED, Status.TOO_LATE):
        controller = with_models(backoff=LoadBackoff(ms(10), ms(50)))
        submit(controller, 1, budget_ms=60_000)
        asked_ns = refuse_until(controller, ms(300), status)
        assert asked_ns == [ms(at) for at in (0, 10, 30, 70, 120, 170, 220, 270)]


def test_another_model_is_loaded_meanwhile() -> None:
    controller = with_models()
    submit(controller, 1, budget_ms=60_000)
    (load,) = sent(controller, Load)
    finish(controller, load, 0, Status.REFUSED, reason="busy")
    submit(controller, 2, now_ns=ms(1), budget_ms=60_000, model="other/1")
    assert [load.model for load in sent(controller, Load)] == ["other/1"]


def test_a_request_with_time_waits_for_the_next_attempt() -> None:
    controller = with_models()
    submit(controller, 1, budget_ms=1_000)
    (load,) = sent(controller, Load)
    finish(controller, load, 0, Status.REFUSED, reason="busy")
    controller.tick(ms(10))
    (load,) = sent(controller, Load)
    finish(controller, load, ms(11))
    assert [infer.model for infer in sent(controller, Infer)] == ["sum/1"]
    assert not sent(controller, Outcome)


def test_a_request_that_cannot_wait_is_refused_with_the_reason() -> None:
    """Both the requests that are queued when the backoff begins and those that arrive during it."""
    controller = with_models(backoff=LoadBackoff(s(1)))
    submit(controller, 1, budget_ms=500)
    submit(controller, 2, budget_ms=5_000)
    (load,) = sent(controller, Load)
    finish(controller, load, ms(1), Status.REFUSED, reason="busy")
    submit(controller, 3, now_ns=ms(2), budget_ms=500)
    submit(controller, 4, now_ns=ms(2), budget_ms=5_000)
    outcomes = sent(controller, Outcome)
    assert [(one.id, one.status) for one in outcomes] == [(1, Status.REFUSED), (3, Status.REFUSED)]
    assert all("next LOAD comes too late" in one.reason and one.reason.endswith("ms late") for one in outcomes)
    assert outcomes[0].retry_after_ns > ms(500)
    assert controller.pending() == 2


def test_another_share_without_refusals_gets_the_load() -> None:
    controller = with_models(WORKER, OTHER, backoff=LoadBackoff(s(1)))
    submit(controller, 1, budget_ms=500)
    (load,) = sent(controller, Load, WORKER)
    finish(controller, load, ms(1), Status.REFUSED, reason="busy")
    assert [load.model for load in sent(controller, Load, OTHER)] == ["sum/1"]
    assert not sent(controller, Outcome)


def test_a_register_ends_the_pause() -> None:
    controller = with_models(backoff=LoadBackoff(s(1)))
    submit(controller, 1, budget_ms=60_000)
    (load,) = sent(controller, Load)
    finish(controller, load, 0, Status.REFUSED, reason="busy")
    assert not sent(controller, Load)
    register(controller, *REPORTS, now_ns=ms(1))
    (load,) = sent(controller, Load)
    finish(controller, load, ms(2), Status.REFUSED, reason="busy")
    controller.tick(ms(1001))
    assert not sent(controller, Load)
    controller.tick(ms(1002))
    assert len(sent(controller, Load)) == 1, "the first pause again"


def test_a_successful_infer_ends_the_growth() -> None:
    controller = with_models()
    submit(controller, 1, budget_ms=60_000)
    asked_ns = refuse_until(controller, ms(60))
    assert asked_ns == [0, ms(10), ms(30)]
    controller.tick(ms(70))
    (load,) = sent(controller, Load)
    finish(controller, load, ms(71))
    (share,) = controller.cluster.shares()
    assert not share.load_retry_ns
    (infer,) = sent(controller, Infer)
    finish(controller, infer, ms(80))
    assert not share.load_pauses


def test_requeued_requests_do_not_count_as_arrivals() -> None:
    controller = with_models()
    for number in range(20):
        submit(controller, number, now_ns=ms(10 * number), budget_ms=60_000)
    (load,) = sent(controller, Load)
    traffic = controller.scheduler.policy.traffic
    assert traffic is not None
    counted, asked = traffic.of_model("sum/1").arrived, traffic.of_model("sum/1").asked.at(ms(200))
    finish(controller, load, ms(200), Status.REFUSED, reason="busy")
    assert controller.pending() == 20
    assert traffic.of_model("sum/1").arrived == counted
    assert traffic.of_model("sum/1").asked.at(ms(200)) == asked
