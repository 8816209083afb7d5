"""Contents of models in answers: cached predictions, answers that name their content, and Settles."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from frontend.frontend_builders import CLIENT, connected_frontend
from harness.builders import a_predict, a_spec, a_state, a_tensor, sent, some_bytes
from horologe_common.clock import ms
from horologe_common.core.protocol import PeerDisconnected
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
from selector.selector_harness import CONTROLLER, FRONTEND, WORKER, SelectorHarness

Y = Tensor("y", "FP32", (1, 1), 4)


class Contents(SelectorHarness):
    """A selector whose only model has had these contents, one after the other."""

    def __init__(self, *contents: str) -> None:
        super().__init__(models="")
        for content in contents:
            self.announce(content)

    def announce(self, content: str) -> None:
        self.send(CONTROLLER, Models(0, (a_state(a_spec(content_hash=content, cache=True)),)))

    def query(self, number: int, *, content_hash: bool = True) -> list[Submit]:
        self.send(FRONTEND, Query(number, "sum/1", ms(100), 1, b"same", content_hash=content_hash))
        return sent(self.selector, Submit)

    def compute(self, submit: Submit, content: str) -> Answer:
        outputs = Outputs(1, (RowStatus(submit.id, 1),), (Y,), "sum/1", 1, 0, 1, content)
        self.send(WORKER, outputs, [b"1234"])
        return sent(self.selector, Answer)[0]


def test_an_answer_names_the_content_that_the_worker_ran() -> None:
    contents = Contents("old")
    [submit] = contents.query(1)
    assert contents.compute(submit, "new").content_hashes == ("new",)
    [submit] = contents.query(2, content_hash=False)
    assert contents.compute(submit, "new").content_hashes == ()


def test_a_prediction_of_another_content_is_not_cached() -> None:
    """The worker has changed, and the announcement has not arrived: going back to the old content would find it."""
    contents = Contents("old")
    [submit] = contents.query(1)
    contents.compute(submit, "new")
    [submit] = contents.query(2)
    contents.compute(submit, "old")
    assert not contents.query(3)
    [cached] = sent(contents.selector, Answer)
    assert (cached.cached, cached.content_hashes) == (True, ("old",))


def test_predictions_of_the_content_before_are_neither_returned_nor_joined() -> None:
    contents = Contents("old")
    [first] = contents.query(1)
    contents.announce("new")
    [second] = contents.query(2)
    contents.compute(first, "old")
    contents.compute(second, "new")
    assert not contents.query(3)
    assert sent(contents.selector, Answer)[0].content_hashes == ("new",)


def test_a_selector_settles_at_once() -> None:
    harness = SelectorHarness()
    harness.send(CONTROLLER, Settle(3, ("sum/1",)))
    assert sent(harness.selector, Settled, CONTROLLER) == [Settled(3)]


def a_frontend(**spec: Any) -> Frontend:
    return connected_frontend(specs=(a_spec(**spec), a_spec("other")))


def open_request(frontend: Frontend, predict: Predict, *, dispatched: bool = True) -> int:
    """Open a request and return its id at the selector or the controller."""
    frontend.handle(0, CLIENT, predict, [some_bytes(1)])
    numbers = [query.id for query in sent(frontend, Query)]
    (number,) = numbers or [submit.id for submit in sent(frontend, Submit)]
    if dispatched:
        frontend.handle(0, CONTROLLER, Dispatch(1, WORKER, (number,)), ())
    return number


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
    outputs = Outputs(1, (RowStatus(number, 1, 0),), (a_tensor(width=1, name="y"),), "sum/1", 1, 0, 0)
    frontend.handle(0, WORKER, outputs, [b"1234"])
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
    answers = [answer, msgspec.structs.replace(answer, id=2)]
    response, again = (
        write_answer(request.predict, request.form, each, [bytes(4)], lambda model, version: a_spec())
        for each in answers
    )
    assert response.body == again.body
    return request.predict, json.loads(response.body)


def test_http_names_the_content_on_request() -> None:
    predict, document = infer({"content_hash": True})
    assert predict.content_hash
    assert document["parameters"] == {"content_hash": "c4"}
    predict, document = infer({})
    assert not predict.content_hash
    assert "parameters" not in document
