"""Workers with different batch sizes of a model."""

from __future__ import annotations

from controller.cluster_builders import (
    OTHER,
    WORKER,
    a_controller,
    end,
    register,
    resident,
    state,
    submit,
    tick,
)
from harness.builders import a_report, a_spec, sent
from horologe_common.clock import ms
from horologe_common.core.protocol import PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import Infer, Load, Outcome, Unload

SMALL, LARGE = a_spec(batch_sizes=(1, 2, 4)), a_spec(batch_sizes=(1, 2, 4, 8))


def test_a_worker_without_all_batch_sizes_is_not_given_the_model_and_it_is_said_why() -> None:
    controller = a_controller()
    register(controller, a_report(LARGE), shares=resident("sum/1"))
    register(controller, a_report(SMALL), worker=OTHER, shares=resident("sum/1"))
    ready, reason = state(controller)
    assert ready == "READY"
    assert OTHER in reason
    assert "[8]" in reason
    submit(controller, *range(20))
    assert sent(controller, Infer, WORKER)
    assert not sent(controller, Infer, OTHER)
    controller.handle(1, WORKER, PeerDisconnected(WORKER), ())
    tick(controller, 1)
    assert state(controller) == ("READY", ""), "now it is the one that says what the model is"
    assert [load.model for load in sent(controller, Load, OTHER)] == ["sum/1"]


def test_a_worker_with_more_batch_sizes_than_admitted_runs_those_that_are() -> None:
    controller = a_controller()
    register(controller, a_report(SMALL), shares=resident("sum/1"))
    register(controller, a_report(LARGE), worker=OTHER, shares=resident("sum/1"))
    assert state(controller) == ("READY", "")
    submit(controller, *range(7))
    submit(controller, 8, rows=5)
    assert [outcome.status for outcome in sent(controller, Outcome)] == [Status.INVALID_INPUT]
    infers = sent(controller, Infer)
    assert all(infer.batch_size <= 4 for infer in infers)
    assert controller.pending() == 7


def test_requests_queued_when_the_batch_sizes_change_are_queued_anew_or_told() -> None:
    controller = a_controller(in_flight=1)
    register(controller, a_report(SMALL), shares=resident("sum/1"))
    submit(controller, 1)
    [first] = sent(controller, Infer)
    submit(controller, 2, 3, 4)
    submit(controller, 5, rows=4)
    register(controller, a_report(a_spec(batch_sizes=(1, 2))), shares=resident("sum/1"))
    [outcome] = sent(controller, Outcome)
    assert (outcome.id, outcome.status) == (5, Status.INVALID_INPUT)
    assert not sent(controller, Unload), "it can go on where it is"
    end(controller, first, ms(3))
    [second] = sent(controller, Infer)
    assert second.batch_size == 2
    end(controller, second, ms(6))
    [third] = sent(controller, Infer)
    end(controller, third, ms(9))
    assert not controller.pending()
