"""A fault in one row, request or message costs only itself; the others are answered, and the host reports the fault."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import pytest

from controller.controller_builders import a_controller, submit
from frontend.frontend_builders import CLIENT, connected_frontend
from gpu_worker.worker_builders import (
    CONTROLLER,
    HOLDER,
    MODEL,
    a_ship,
    a_worker,
    an_infer,
    deliver,
    only_result,
    operations,
    responses_by_row,
    run_operation,
)
from harness.builders import BrokenError, a_report, a_spec, a_tensor, sent, some_bytes
from horologe_common.clock import NEVER_NS, ms, s
from horologe_common.status import Status
from horologe_common.wire import Answer, Infer, Outcome, Outputs, Predict, Query, Result, Row, RowStatus, Submit, Tensor
from horologe_gpu_worker.core.lanes import Finished
from selector.selector_harness import FRONTEND, WORKER, ApplicationHarness

if TYPE_CHECKING:
    from collections.abc import Callable

BreakMethod: TypeAlias = "Callable[[Any, str, Callable[..., bool]], None]"


@pytest.fixture
def break_method(monkeypatch: pytest.MonkeyPatch) -> BreakMethod:
    """Let a method of an object raise for the arguments for which a function returns True."""

    def break_method(owner: Any, name: str, is_broken: Callable[..., bool]) -> None:
        method = getattr(owner, name)

        def broken(*arguments: Any) -> Any:
            if is_broken(*arguments):
                raise BrokenError("no memory")
            return method(*arguments)

        monkeypatch.setattr(owner, name, broken)

    return break_method


@pytest.fixture
def broken_policy(break_method: BreakMethod, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ApplicationHarness]:
    """Return a harness whose policy raises when it combines the predictions of a query of the context `bad`."""

    def build(*models: str) -> ApplicationHarness:
        harness, asked = ApplicationHarness(models=models), list[str]()
        applications = harness.selector.applications
        state_of = applications.queries._policy_state

        def policy_state(now_ns: int, query: Any) -> Any:
            asked.append(query.query.context)
            return state_of(now_ns, query)

        monkeypatch.setattr(applications.queries, "_policy_state", policy_state)
        break_method(applications.registry.active["digits"].policy, "combine", lambda *_: asked[-1] == "bad")
        for number, context in enumerate(("good", "bad", "fine"), 1):
            harness.query(number, context=context, hashed=bytes([number]) * 32)
            if len(models) > 1:
                harness.predict(models[0], number)
        return harness

    return build


def send_outputs(harness: ApplicationHarness, *labels: int) -> None:
    """Send the outputs of all open Submits in one message, and tick."""
    rows = tuple(RowStatus(submit_id, 1) for submit_id in harness.selector.inflight._inflight)
    assert len(rows) == len(labels)
    tensor = Tensor("y", "INT64", (len(labels),), 8 * len(labels))
    harness.selector.handle(
        harness.now_ns, WORKER, Outputs(1, rows, (tensor,)), [struct.pack(f"<{len(labels)}q", *labels)]
    )
    with pytest.raises(BrokenError):
        harness.run_until_idle()
    harness.run_until_idle()
    harness.selector.check()


def answers(harness: ApplicationHarness) -> dict[int, Status]:
    return {answer.id: Status(answer.status) for answer in sent(harness.selector, Answer, FRONTEND)}


def test_a_policy_that_raises_fails_its_own_query_only(broken_policy: Callable[..., ApplicationHarness]) -> None:
    harness = broken_policy("a")
    send_outputs(harness, 1, 2, 3)
    assert answers(harness) == {1: Status.OK, 2: Status.FAILED, 3: Status.OK}


def test_at_the_deadline_a_policy_that_raises_fails_its_own_query_only(
    broken_policy: Callable[..., ApplicationHarness],
) -> None:
    harness = broken_policy("a", "b")
    with pytest.raises(BrokenError):
        harness.advance_to(100)
    harness.run_until_idle()
    harness.selector.check()
    assert answers(harness) == {1: Status.OK, 2: Status.FAILED, 3: Status.OK}


def test_a_frontend_answers_the_other_requests_whose_timers_expire_with_a_broken_one(break_method: BreakMethod) -> None:
    frontend = connected_frontend()
    for number in (1, 2, 3):
        predict = Predict(number, "one", "", ms(10), (a_tensor(),))
        frontend.handle(0, CLIENT, predict, [some_bytes(1)])
    queries = sent(frontend, Query)
    break_method(frontend, "_give_up", lambda now_ns, request, *_: request.client_id == 2)
    with pytest.raises(BrokenError):
        frontend.tick(s(1))
    assert [answer.id for answer in sent(frontend, Answer, CLIENT)] == [1, 3]
    assert len(queries) == 3


@pytest.mark.interpreted
def test_a_controller_queues_the_other_models_of_a_turn_with_a_broken_one(break_method: BreakMethod) -> None:
    controller = a_controller(reports=[a_report(a_spec("bad")), a_report(a_spec("good"))])
    break_method(controller.scheduler, "add", lambda now_ns, requests: requests[0].model == "bad/1")
    for number, model in ((1, "bad/1"), (2, "good/1"), (3, "nope/1")):
        controller.handle(0, "selector/0#1", Submit(number, model, ms(100), 1, FRONTEND, number), ())
    with pytest.raises(BrokenError):
        controller.tick(0)
    assert [outcome.id for outcome in sent(controller, Outcome)] == [3]
    controller.tick(0)  # the broken Submit is not admitted again and again
    assert [infer.model for infer in sent(controller, Infer)] == ["good/1"]


@pytest.mark.interpreted
def test_the_requests_of_a_batch_end_though_its_result_cannot_be_recorded(break_method: BreakMethod) -> None:
    controller = a_controller()
    submit(controller, 1)
    (infer,) = sent(controller, Infer)
    break_method(controller._metrics, "record_result", lambda *_: True)
    with pytest.raises(BrokenError):
        controller.handle(ms(2), WORKER, Result(infer.action_id, Status.OK, 0, ms(2)), ())
    controller.check()
    assert controller.pending() == 0


def test_a_worker_starts_the_other_actions_of_a_turn_with_a_broken_one(break_method: BreakMethod) -> None:
    worker = a_worker()
    for action_id in (1, 2, 3):
        worker.handle(0, CONTROLLER, an_infer(action_id), ())
        ship, buffers = a_ship({100: [float(action_id)]}, action_id)
        worker.handle(0, HOLDER, ship, buffers)
    break_method(worker.infers, "_start_action", lambda now_ns, action: action.infer.action_id == 2)
    with pytest.raises(BrokenError):
        worker.tick(0)
    worker.tick(0)
    worker.check()
    assert [operation.action_id for operation in operations(worker.out)] == [1, 3]
    result = only_result(worker.out)
    assert (result.action_id, result.status, "no memory" in result.reason) == (2, Status.FAILED, True)


def test_outputs_that_cannot_be_split_fail_their_action_with_an_answer_for_every_row() -> None:
    worker = a_worker()
    infer = an_infer(rows=(1, 1), parties=(HOLDER, "selector/0#a", "selector/1#a"))
    rows = (infer.rows[0], Row(0, 101, 2, 201, 1))
    worker.handle(0, CONTROLLER, Infer(1, 0, MODEL, 2, rows, infer.parties, 0, NEVER_NS, ms(1)), ())
    [operation] = operations(deliver(worker, 0, HOLDER, *a_ship({100: [1.0], 101: [2.0]})))
    ((tensor, buffer),) = run_operation(operation).outputs
    flat = msgspec.structs.replace(tensor, shape=())
    with pytest.raises(IndexError):
        worker.handle(ms(1), worker.lanes, Finished(1, "exec", Status.OK, 5, ms(1), ms(1), [(flat, buffer)]), ())
    worker.tick(ms(1))
    worker.check()
    assert set(responses_by_row(worker.out).values()) == {Status.FAILED}
    assert len(responses_by_row(worker.out)) == 2
    assert only_result(worker.out).status == Status.FAILED
