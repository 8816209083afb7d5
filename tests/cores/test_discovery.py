"""After a start, a model is unknown only once all workers have registered. Until then requests wait or are REFUSED."""

from __future__ import annotations

import random

import pytest

from controller.controller_builders import FRONTEND, OTHER, WORKER, a_new_controller, register, submit, tick
from frontend.frontend_builders import CLIENT, CONTROLLER, SELECTOR, connected_frontend, starting_frontend
from harness.builders import a_report, a_spec, a_state, a_tensor, sent, some_bytes
from horologe_common.clock import NEVER_NS, ms, s
from horologe_common.core.protocol import PeerConnected, PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import (
    Admit,
    Answer,
    Cancel,
    Infer,
    ModelInfo,
    Models,
    Outcome,
    Predict,
    Query,
    Register,
    Share,
    Submit,
)
from horologe_controller.core.cluster.discovery import DISCOVERY_NS
from horologe_controller.core.controller import Controller
from horologe_frontend.core.frontend import Frontend
from horologe_selector.core.selector import Selector
from horologe_selector.settings import SelectorSettings

NOW = s(100)
A, B = a_report(a_spec("a")), a_report(a_spec("b"))
ONE_OF_TWO = "1 of 2 workers have registered"


def statuses(controller: Controller) -> list[tuple[int, Status]]:
    return [(outcome.id, Status(outcome.status)) for outcome in sent(controller, Outcome)]


def test_requests_for_a_model_wait_for_its_worker() -> None:
    controller = a_new_controller(workers=2)
    submit(controller, 1, model="b/1")
    register(controller, A)
    submit(controller, 2, model="b/1")
    assert statuses(controller) == []
    assert controller.pending() == 2
    register(controller, B, worker=OTHER, resident=("b/1",), now_ns=ms(50))
    assert [row.submit_id for infer in sent(controller, Infer) for row in infer.rows] == [1, 2]


def test_a_request_waits_for_a_worker_whose_clock_is_not_known_yet() -> None:
    controller = a_new_controller(workers=2)
    submit(controller, 1, model="b/1")
    controller.handle(0, WORKER, PeerConnected(WORKER, "elsewhere"), ())
    register(controller, B, resident=("b/1",))
    register(controller, B, worker=OTHER)
    assert controller.pending() == 1


@pytest.mark.interpreted
def test_requests_that_wait_are_looked_at_only_when_a_worker_registers() -> None:
    controller = a_new_controller(workers=2)
    submit(controller, *range(100), model="b/1")
    looks = []
    controller._requests.awaited.pop_admissible = lambda models: looks.append(models) or []  # type: ignore[func-returns-value,method-assign]
    for turn in range(10):
        tick(controller, turn)
    assert looks == []
    register(controller, A)
    assert len(looks) == 1


def test_a_request_whose_worker_does_not_come_is_refused_by_its_deadline() -> None:
    controller = a_new_controller(workers=2)
    register(controller, A)
    submit(controller, 1, model="b/1", budget_ms=100)
    assert (controller.wakeup_ns() or NEVER_NS) <= ms(100)
    tick(controller, ms(100))
    (outcome,) = sent(controller, Outcome)
    assert (outcome.status, ONE_OF_TWO in outcome.reason) == (Status.REFUSED, True)
    assert controller.pending() == 0


def test_a_model_is_unknown_once_all_workers_have_registered() -> None:
    controller = a_new_controller(workers=2)
    submit(controller, 1, model="c/1")
    register(controller, A)
    assert [models.incomplete for models in sent(controller, Models, FRONTEND)][-1] == ONE_OF_TWO
    register(controller, B, worker=OTHER)
    submit(controller, 2, model="c/1")
    assert statuses(controller) == [(1, Status.UNKNOWN_MODEL), (2, Status.UNKNOWN_MODEL)]
    assert sent(controller, Models, FRONTEND)[-1].incomplete == ""


def test_a_worker_that_comes_back_is_not_a_second_one() -> None:
    controller = a_new_controller(workers=2)
    register(controller, A)
    controller.handle(0, WORKER, PeerDisconnected(WORKER), ())
    controller.handle(0, "worker/0#2", PeerConnected("worker/0#2", "host"), ())
    controller.handle(0, "worker/0#2", Register((Share(0, "cpu", 10),), (A,)), ())
    tick(controller, 0)
    assert sent(controller, Models, FRONTEND)[-1].incomplete == ONE_OF_TWO


def test_without_a_number_of_workers_they_have_some_time_to_register() -> None:
    controller = a_new_controller(workers=0)
    submit(controller, 1, model="b/1", budget_ms=30_000)
    tick(controller, DISCOVERY_NS + s(1))
    assert statuses(controller) == [], "no worker has registered"
    register(controller, A, now_ns=DISCOVERY_NS + s(1))
    assert statuses(controller) == [(1, Status.UNKNOWN_MODEL)]

    controller = a_new_controller(workers=0)
    register(controller, A)
    submit(controller, 1, model="b/1", budget_ms=30_000)
    assert statuses(controller) == []
    assert controller.wakeup_ns() is not None
    tick(controller, DISCOVERY_NS)
    assert statuses(controller) == [(1, Status.UNKNOWN_MODEL)]
    assert sent(controller, Models, FRONTEND)[-1].incomplete == ""


def test_waiting_requests_are_cancelled_bounded_and_held_once() -> None:
    controller = a_new_controller(workers=2, max_queued=3)
    submit(controller, 1, 1, 2, 3, 4, model="b/1")
    assert statuses(controller) == [(4, Status.REFUSED)]
    controller.handle(0, SELECTOR, Cancel((2,)), ())
    tick(controller, 0)
    assert controller.pending() == 2
    controller.handle(0, SELECTOR, PeerDisconnected(SELECTOR), ())
    tick(controller, 0)
    assert controller.pending() == 0


def test_an_operator_is_told_that_the_model_is_not_known_yet() -> None:
    controller = a_new_controller(workers=2)
    register(controller, A)
    controller.out.clear()
    controller.handle(0, FRONTEND, Admit(5, "b", "", admitted=False), ())
    (reply,) = [models for models in sent(controller, Models, FRONTEND) if models.id == 5]
    assert (reply.status, ONE_OF_TWO in reply.reason) == (Status.REFUSED, True)


def predict_status(frontend: Frontend, model: str) -> tuple[Status | None, str]:
    """Send a request. Return the status and the reason of its answer; (None, "") if it was submitted."""
    frontend.out.clear()
    frontend.handle(NOW, CLIENT, Predict(7, model, "", ms(100), (a_tensor(),)), [some_bytes(1)])
    frontend.tick(NOW)
    submitted: list[Submit | Query] = [*sent(frontend, Submit), *sent(frontend, Query)]
    if submitted:
        frontend.handle(NOW, CLIENT, Cancel((7,)), ())
        return None, ""
    (answer,) = sent(frontend, Answer, CLIENT)
    return Status(answer.status), answer.reason


def announce(frontend: Frontend, *models: str, controller: str = CONTROLLER, incomplete: str = "") -> None:
    states = tuple(a_state(a_spec(model)) for model in models)
    frontend.handle(NOW, controller, Models(0, states, incomplete=incomplete), ())
    frontend.handle(NOW, SELECTOR, Models(0, ()), ())  # it has no pipelines


def test_a_frontend_refuses_what_it_does_not_know_until_the_catalogue_is_complete() -> None:
    frontend = starting_frontend()
    assert predict_status(frontend, "b")[0] == Status.REFUSED
    announce(frontend, "a", incomplete=ONE_OF_TWO)
    assert predict_status(frontend, "a")[0] is None
    status, reason = predict_status(frontend, "b")
    assert (status, ONE_OF_TWO in reason) == (Status.REFUSED, True)
    announce(frontend, "a")
    assert predict_status(frontend, "b") == (Status.UNKNOWN_MODEL, "model: got 'b', which is not served")


def test_a_frontend_refuses_what_may_be_a_pipeline_of_a_selector_that_is_starting() -> None:
    frontend = starting_frontend()
    frontend.handle(NOW, CONTROLLER, Models(0, (a_state(a_spec("a")),)), ())
    status, reason = predict_status(frontend, "p")
    assert (status, "no selector has announced its pipelines" in reason) == (Status.REFUSED, True)
    announce(frontend, "a")
    assert predict_status(frontend, "p")[0] == Status.UNKNOWN_MODEL


def test_a_frontend_keeps_its_models_while_a_new_controller_waits_for_the_workers() -> None:
    frontend = connected_frontend()
    frontend.handle(NOW, CONTROLLER, PeerDisconnected(CONTROLLER), ())
    frontend.handle(NOW, "controller/0#2", PeerConnected("controller/0#2"), ())
    announce(frontend, controller="controller/0#2", incomplete="no worker has registered")
    assert predict_status(frontend, "one")[0] is None
    assert {state.state for state in frontend.catalogue.model_states()} == {"LOADING"}
    announce(frontend, "one", controller="controller/0#2")
    assert predict_status(frontend, "one")[0] is None
    assert predict_status(frontend, "two")[0] == Status.UNKNOWN_MODEL


def test_the_signature_of_a_model_that_is_not_known_yet_is_refused() -> None:
    frontend = starting_frontend()
    frontend.handle(NOW, CLIENT, ModelInfo(1, "a"), ())
    announce(frontend, incomplete=ONE_OF_TWO)
    frontend.handle(NOW, CLIENT, ModelInfo(2, "a"), ())
    announce(frontend)
    frontend.handle(NOW, CLIENT, ModelInfo(3, "a"), ())
    replies = sent(frontend, Models, CLIENT)
    assert [Status(reply.status) for reply in replies] == [Status.REFUSED, Status.REFUSED, Status.OK]
    assert ONE_OF_TWO in replies[1].reason


def test_a_selector_keeps_its_models_while_a_new_controller_waits_for_the_workers() -> None:
    selector = Selector(SELECTOR, SelectorSettings(store="memory"), random.Random(1))
    models = selector.models
    assert models.explain_missing("a")[0] == Status.REFUSED
    selector.handle(NOW, CONTROLLER, Models(0, (a_state(a_spec("a")), a_state(a_spec("b")))), ())
    selector.handle(NOW, CONTROLLER, Models(0, (a_state(a_spec("a")),), incomplete=ONE_OF_TWO), ())
    assert models.find_ready("a")
    assert models.find_ready("b")
    assert models.explain_missing("c")[0] == Status.REFUSED
    selector.handle(NOW, CONTROLLER, Models(0, (a_state(a_spec("a")),)), ())
    assert models.find_ready("b") is None
    assert models.explain_missing("b")[0] == Status.UNKNOWN_MODEL
