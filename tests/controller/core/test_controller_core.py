"""The controller: batches with windows, LOADs and UNLOADs, and one end per request."""

from __future__ import annotations

from controller.controller_builders import (
    FRONTEND,
    OTHER,
    SELECTOR,
    WORKER,
    a_controller,
    a_new_controller,
    finish,
    join,
    register,
    submit,
)
from harness.builders import a_report, sent
from horologe_common.clock import ms, s
from horologe_common.core.protocol import PeerDisconnected
from horologe_common.distribution import Distribution
from horologe_common.status import Status
from horologe_common.wire import (
    Cancel,
    Dispatch,
    Infer,
    Outcome,
    Ping,
    Pong,
    Result,
    Submit,
)
from horologe_controller.core.runtime_distributions import RuntimeDistributions, SoloDistribution


def test_a_request_becomes_an_infer_with_a_window_and_a_dispatch(scheduler: str) -> None:
    controller = a_controller(scheduler)
    submit(controller, 1, now_ns=ms(20))
    (infer,) = sent(controller, Infer, WORKER)
    (dispatch,) = sent(controller, Dispatch, FRONTEND)
    assert (infer.model, infer.batch_size, infer.expected_ns) == ("sum/1", 1, ms(2))
    assert (infer.earliest_ns, infer.latest_ns) == (ms(20), ms(20) + ms(100) - ms(2))
    assert (dispatch.action_id, dispatch.worker, dispatch.input_ids) == (infer.action_id, WORKER, (1,))
    finish(controller, infer, ms(23))
    assert controller.pending() == 0
    assert not sent(controller, Outcome)


def test_cancelled_requests_leave_the_queue() -> None:
    controller = a_controller(in_flight=1)
    submit(controller, 1)
    submit(controller, 2, 3)
    (infer,) = sent(controller, Infer)
    controller.handle(1, SELECTOR, Cancel((1, 2)), ())
    finish(controller, infer, ms(3))
    assert [row.submit_id for row in sent(controller, Infer)[0].rows] == [3]
    assert not sent(controller, Outcome)


def test_a_dead_selectors_requests_are_dropped() -> None:
    controller = a_controller()
    submit(controller, 1, 2, 3)
    controller.handle(1, SELECTOR, PeerDisconnected(SELECTOR), ())
    assert controller.pending() == 0
    controller.check()


def test_a_result_of_an_unknown_action_changes_nothing() -> None:
    controller = a_controller()
    controller.handle(1, WORKER, Result(999, Status.OK, 0, 1), ())
    controller.handle(1, "worker/9#9", Result(1, Status.OK, 0, 1), ())
    controller.check()


def test_windows_are_in_the_workers_clock() -> None:
    controller = a_new_controller(scheduler="edf")
    register(controller, a_report(), resident=("sum/1",), host="elsewhere")
    (ping,) = sent(controller, Ping, WORKER)
    controller.handle(ms(2), WORKER, Pong(ping.sent_ns, ms(5001)), ())
    submit(controller, 1, now_ns=ms(10))
    (infer,) = sent(controller, Infer)
    assert infer.earliest_ns == ms(10) + ms(5000)


def test_a_share_does_not_wait_for_the_inputs_of_a_solo_request() -> None:
    """The submitter may be lost or hang, so the window is short, however late the deadline."""
    controller = a_controller("clockwork")
    message = Submit(1, "sum/1", s(10), 1, "profiler/0#1", 1, best_effort=True, solo=True)
    controller.handle(0, SELECTOR, message, ())
    controller.tick(0)
    (infer,) = sent(controller, Infer, WORKER)
    assert infer.latest_ns <= ms(101)


def test_a_run_of_the_profiler_says_how_slow_its_device_is() -> None:
    """By the profiles, as a multiple of the fastest one: the distributions that come of it hold for any device."""
    controller = a_controller()
    join(controller, OTHER, a_report(exec_ms=5))
    for solo in (True, False):
        for number in (1, 2):
            message = Submit(number, "sum/1", s(10), 1, "profiler/0#1", number, best_effort=True, solo=solo)
            controller.handle(0, SELECTOR, message, ())
            controller.tick(0)
        infers = [infer for worker in (WORKER, OTHER) for infer in sent(controller, Infer, worker)]
        assert [infer.slowness for infer in infers] == ([1.0, 2.5] if solo else [1.0, 1.0])
        for infer, worker in zip(infers, (WORKER, OTHER), strict=True):
            controller.handle(0, worker, Result(infer.action_id, Status.OK, 0, 1), ())


def test_solo_requests_have_a_batch_each(scheduler: str) -> None:
    """A solo request measures its own time: no other request is in its batch."""
    controller = a_controller(scheduler, in_flight=8, lookahead_ns=ms(100))
    for number in range(1, 7):
        solo = number % 2 == 0
        message = Submit(number, "sum/1", s(10), 1, FRONTEND, number, best_effort=True, solo=solo)
        controller.handle(0, SELECTOR, message, ())
    batches: list[list[int]] = []
    for step in range(40):
        controller.tick(ms(step * 10))
        controller.check()
        for infer in sent(controller, Infer, WORKER):
            batches.append([row.submit_id for row in infer.rows])
            assert infer.batch_size == 1 or len(infer.rows) > 1
            result = Result(infer.action_id, Status.OK, ms(step * 10), ms(step * 10 + 2))
            controller.handle(ms(step * 10 + 2), WORKER, result, ())
    assert sorted(number for batch in batches for number in batch) == [1, 2, 3, 4, 5, 6]
    assert all(len(batch) == 1 for batch in batches if any(number % 2 == 0 for number in batch))


def test_a_request_of_several_rows_takes_as_long_as_the_batch_size_that_holds_them() -> None:
    controller = a_controller("horologe")
    solo = Distribution.from_samples([ms(8), ms(9), ms(10)])
    controller.cluster.distributions["sum/1"] = RuntimeDistributions(ms(1), [SoloDistribution("", 0, solo)])
    controller.handle(0, SELECTOR, Submit(1, "sum/1", ms(100), 2, FRONTEND, 1), ())
    controller.tick(ms(0))
    (infer,) = sent(controller, Infer)
    assert infer.batch_size == 2
    assert infer.expected_ns > ms(1) + 2 * ms(8)


def test_a_request_of_several_rows_does_not_change_how_the_others_of_a_dynamic_model_are_planned() -> None:
    controller = a_controller("horologe")
    solo = Distribution.from_samples([ms(8), ms(9), ms(10)])
    controller.cluster.distributions["sum/1"] = RuntimeDistributions(ms(1), [SoloDistribution("", 0, solo)])
    for number, rows, budget_ms in ((1, 2, 100), (2, 1, 50)):
        controller.handle(0, SELECTOR, Submit(number, "sum/1", ms(budget_ms), rows, FRONTEND, number), ())
    infers = []
    for now_ms in range(50):
        controller.tick(ms(now_ms))
        controller.check()
        for infer in sent(controller, Infer):
            infers.append(infer)
            finish(controller, infer, ms(now_ms) + infer.expected_ns)
    (alone,) = [infer for infer in infers if [row.submit_id for row in infer.rows] == [2]]
    assert alone.expected_ns > ms(8)
    assert sum(len(infer.rows) for infer in infers) == 2
