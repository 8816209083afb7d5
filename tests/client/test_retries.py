"""Retries of lost requests that may run twice: only once, within the deadline and the budget."""

from __future__ import annotations

import msgspec
import pytest

from client.talk import Sink, Talk
from fakes.frontend import ECHO
from horologe.core.retry_budget import FULL, RetryBudget
from horologe.core.session import Session
from horologe_common.clock import ms
from horologe_common.status import InvalidInput, Lost, Status
from horologe_common.wire import Answer, Cancel, Models, ModelState, Predict

SLO_NS = ms(80)


def lose(talk: Talk) -> None:
    """Break the connection, connect again, and answer the query for signatures that follows."""
    talk.session.on_disconnected(talk.now_ns, talk.session.connection)
    talk.welcomed()


def resent(talk: Talk) -> list[Predict]:
    """Return the predictions that the session sends on its new connection, after their signature has arrived."""
    messages = [message for message, _ in talk.sent()]
    for question in messages:
        talk.get(Models(question.id, (ModelState(ECHO),)))
    return [message for message, _ in talk.sent() if isinstance(message, Predict)]


def send(talk: Talk, **options: object) -> tuple[Sink, Predict]:
    sink = talk.predict("echo", **options)
    ((message, _),) = talk.sent()
    return sink, message


def test_a_request_whose_connection_broke_is_sent_again_with_what_remains_of_its_deadline() -> None:
    talk = Talk().knowing(ECHO)
    sink, first = send(talk, slo_ms=80, idempotent=True)
    talk.after(ms(30))
    lose(talk)
    (again,) = resent(talk)
    assert again.budget_ns == first.budget_ns - ms(30)
    assert again.inputs == first.inputs
    talk.get(Answer(again.id, Status.REFUSED))
    assert sink.end.status == Status.REFUSED


def test_other_requests_are_lost() -> None:
    talk = Talk().knowing(ECHO)
    sink, _ = send(talk, slo_ms=80)
    lose(talk)
    assert isinstance(sink.end, Lost)
    assert resent(talk) == []


def test_a_lost_request_is_sent_at_most_twice() -> None:
    talk = Talk().knowing(ECHO)
    sink, first = send(talk, slo_ms=80, idempotent=True)
    talk.get(Answer(first.id, Status.LOST))
    ((again, _),) = talk.sent()
    assert isinstance(again, Predict)
    assert sink.ends == []
    talk.get(Answer(again.id, Status.LOST))
    assert isinstance(sink.end, Lost)
    assert talk.sent() == []


def test_after_the_deadline_nothing_is_sent_again() -> None:
    talk = Talk().knowing(ECHO)
    sink, _ = send(talk, slo_ms=80, idempotent=True)
    talk.now_ns += ms(80)
    lose(talk)
    assert isinstance(sink.end, Lost)


def test_the_slo_of_the_model_is_the_deadline_of_a_retry() -> None:
    talk = Talk().knowing(msgspec.structs.replace(ECHO, slo_ns=SLO_NS))
    _, first = send(talk, idempotent=True)
    assert first.budget_ns == 0
    talk.after(ms(30))
    talk.get(Answer(first.id, Status.LOST))
    ((again, _),) = talk.sent()
    assert again.budget_ns == SLO_NS - ms(30)


def test_a_retry_can_be_cancelled() -> None:
    talk = Talk().knowing(ECHO)
    sink, first = send(talk, slo_ms=80, idempotent=True)
    talk.get(Answer(first.id, Status.LOST))
    talk.sent()
    talk.session.cancel(sink.id)
    assert [message for message, _ in talk.sent()] == [Cancel((sink.id,))]
    talk.session.pending.check()


def test_the_budget_bounds_the_retries_of_a_server_that_loses_everything() -> None:
    talk = Talk().knowing(ECHO)
    sent = 0
    for _ in range(200):
        sink, first = send(talk, slo_ms=80, idempotent=True)
        talk.get(Answer(first.id, Status.LOST))
        for message, _ in talk.sent():
            sent += 1
            talk.get(Answer(message.id, Status.LOST))
        assert isinstance(sink.end, Lost)
    assert 20 <= sent <= FULL + 20
    talk.session.pending.check()


def test_a_budget_of_zero_allows_none() -> None:
    budget = RetryBudget(0)
    for _ in range(1000):
        budget.add_request()
    assert not budget.take_retry()


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_a_budget_is_a_share(share: float) -> None:
    with pytest.raises(InvalidInput, match="retry_budget"):
        Session({}, retry_budget=share)
