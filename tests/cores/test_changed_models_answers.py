"""Contents of models in answers: cached predictions, answers that name their content, and Settles."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest

from harness.builders import a_predict, a_spec, a_state, a_tensor, sent, some_bytes
from horologe_common.clock import ms
from horologe_common.core.protocol import PeerConnected, PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import (
    Answer,
    Dispatch,
    Models,
    Outputs,
    Predict,
    Query,
    RowStatus,
    Settle,
    Settled,
    Submit,
    Tensor,
)
from horologe_frontend.core.frontend import Frontend
from horologe_frontend.oip.inference import read_request
from horologe_frontend.oip.inference_response import write_answer
from horologe_frontend.settings import FrontendSettings
from horologe_selector.core.selector import Selector
from horologe_selector.settings import SelectorSettings

CLIENT, FRONTEND, SELECTOR = "client/aa", "frontend/0#1", "selector/0#1"
CONTROLLER, WORKER = "controller/0#1", "worker/0#1"
Y = Tensor("y", "FP32", (1, 1), 4)


def a_selector() -> Selector:
    selector = Selector(SELECTOR, SelectorSettings(), random.Random(1))
    for address in (FRONTEND, CONTROLLER):
        selector.handle(0, address, PeerConnected(address), ())
    return selector


def announce(selector: Selector, content: str) -> None:
    selector.handle(0, CONTROLLER, Models(0, (a_state(a_spec(content_hash=content, cache=True)),)), ())


def query(selector: Selector, number: int, *, content_hash: bool = True) -> list[Submit]:
    selector.handle(0, FRONTEND, Query(number, "sum/1", ms(100), 1, b"same", content_hash=content_hash), ())
    return sent(selector, Submit)


def compute(selector: Selector, submit: Submit, content: str) -> Answer:
    outputs = Outputs(1, (RowStatus(submit.id, 1),), (Y,), "sum/1", 1, 0, 1, content)
    selector.handle(0, WORKER, outputs, [b"1234"])
    return sent(selector, Answer)[0]


def test_an_answer_names_the_content_that_the_worker_ran() -> None:
    selector = a_selector()
    announce(selector, "old")
    [submit] = query(selector, 1)
    assert compute(selector, submit, "new").content_hashes == ("new",)
    [submit] = query(selector, 2, content_hash=False)
    assert compute(selector, submit, "new").content_hashes == ()


def test_a_prediction_of_another_content_is_not_cached() -> None:
    """The worker has changed, and the announcement has not arrived: going back to the old content would find it."""
    selector = a_selector()
    announce(selector, "old")
    [submit] = query(selector, 1)
    compute(selector, submit, "new")
    [submit] = query(selector, 2)
    compute(selector, submit, "old")
    assert not query(selector, 3)
    [cached] = sent(selector, Answer)
    assert (cached.cached, cached.content_hashes) == (True, ("old",))


def test_predictions_of_the_content_before_are_neither_returned_nor_joined() -> None:
    selector = a_selector()
    announce(selector, "old")
    [first] = query(selector, 1)
    announce(selector, "new")
    [second] = query(selector, 2)
    compute(selector, first, "old")
    compute(selector, second, "new")
    assert not query(selector, 3)
    assert sent(selector, Answer)[0].content_hashes == ("new",)


def test_a_selector_settles_at_once() -> None:
    selector = a_selector()
    selector.handle(0, CONTROLLER, Settle(3, ("sum/1",)), ())
    selector.tick(0)
    assert sent(selector, Settled, CONTROLLER) == [Settled(3)]


def a_frontend(**spec: Any) -> Frontend:
    frontend = Frontend(FRONTEND, FrontendSettings(), lambda header, buffers: header)
    for address in (SELECTOR, CONTROLLER, WORKER):
        frontend.handle(0, address, PeerConnected(address), ())
    states = (a_state(a_spec(**spec)), a_state(a_spec("other")))
    frontend.handle(0, CONTROLLER, Models(0, states), ())
    return frontend


def open_request(frontend: Frontend, predict: Predict, *, dispatched: bool = True) -> int:
    """Open a request and return its id at the selector."""
    frontend.handle(0, CLIENT, predict, [some_bytes(1)])
    [opened] = sent(frontend, Query)
    if dispatched:
        frontend.handle(0, CONTROLLER, Dispatch(1, WORKER, (opened.id,)), ())
    return opened.id


def settled(frontend: Frontend, now_ns: int = 0) -> list[Settled]:
    frontend.tick(now_ns)
    return sent(frontend, Settled, CONTROLLER)


def settle(frontend: Frontend) -> list[Settled]:
    frontend.handle(0, CONTROLLER, Settle(3, ("sum/1",)), ())
    return settled(frontend)


def test_a_frontend_settles_when_the_requests_that_a_worker_has_are_answered() -> None:
    frontend = a_frontend()
    number = open_request(frontend, a_predict(1))
    assert not settle(frontend)
    open_request(frontend, a_predict(2))
    frontend.handle(0, SELECTOR, Answer(number, 0, (a_tensor(width=1, name="y"),)), [b"1234"])
    assert settled(frontend) == [Settled(3)], "later requests run on the new content"
    assert not settled(frontend)


def test_a_request_that_expires_does_not_hold_a_settle() -> None:
    frontend = a_frontend()
    open_request(frontend, a_predict(1, budget_ms=10))
    assert not settle(frontend)
    assert settled(frontend, ms(1000)) == [Settled(3)]


@pytest.mark.parametrize(("model", "dispatched"), [("sum", False), ("other", True)])
def test_requests_that_cannot_have_run_on_the_model_are_not_waited_for(model: str, dispatched: bool) -> None:
    frontend = a_frontend()
    open_request(frontend, a_predict(1, model=model), dispatched=dispatched)
    assert settle(frontend) == [Settled(3)]


def test_a_request_that_may_share_an_earlier_answer_is_waited_for() -> None:
    frontend = a_frontend(cache=True)
    open_request(frontend, a_predict(1), dispatched=False)
    assert not settle(frontend)


def test_a_settle_of_a_lost_controller_is_forgotten() -> None:
    frontend = a_frontend()
    open_request(frontend, a_predict(1, budget_ms=10))
    assert not settle(frontend)
    frontend.handle(0, CONTROLLER, PeerDisconnected(CONTROLLER), ())
    assert not settled(frontend, ms(1000))


def test_clients_cannot_settle_anything() -> None:
    frontend = a_frontend()
    frontend.handle(0, CLIENT, Settle(3, ()), ())
    assert not settled(frontend)


def infer(parameters: dict[str, Any]) -> tuple[Predict, dict[str, Any]]:
    """Return the Predict of an HTTP request, and the response to an answer that names a content."""
    data = [1.0, 2.0, 3.0, 4.0]
    inputs = [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": data}]
    body = json.dumps({"inputs": inputs, "parameters": parameters}).encode()
    request = read_request(a_spec(), "", body, None, 1 << 20)
    contents = ("c4",) if request.predict.content_hash else ()
    answer = Answer(1, int(Status.OK), (Y,), model="sum", version="1", content_hashes=contents)
    response = write_answer(request.predict, request.form, answer, [bytes(4)])
    again = write_answer(request.predict, request.form, msgspec.structs.replace(answer, id=2), [bytes(4)])
    assert response.body == again.body
    return request.predict, json.loads(response.body)


def test_http_names_the_content_on_request() -> None:
    predict, document = infer({"content_hash": True})
    assert predict.content_hash
    assert document["parameters"] == {"content_hash": "c4"}
    predict, document = infer({})
    assert not predict.content_hash
    assert "parameters" not in document
