"""Drain: a service that stops moves its clients to another one, and finishes what they have sent."""

from __future__ import annotations

from typing import Any

from client.talk import Talk, X
from frontend.frontend_builders import CLIENT, NOW, SELECTOR, announce, connected_frontend
from harness.builders import a_predict, a_spec, a_state, sent, some_bytes
from horologe_common.clock import ms, s
from horologe_common.core.protocol import Out, PeerConnected, PeerDisconnected
from horologe_common.status import Lost, Status
from horologe_common.wire import (
    PROTOCOL,
    Answer,
    Cancel,
    Declare,
    Drain,
    Hello,
    Models,
    Predict,
    Query,
    Submit,
    Welcome,
)
from horologe_common.wire.frames import unpack
from horologe_frontend.core.frontend import Frontend
from horologe_frontend.core.readiness import SERVE_NS
from selector.selector_harness import FRONTEND, ApplicationHarness

HTTP, OTHER, THIRD = "http/0#1", "client/bb", "selector/1#1"


def send_predict(frontend: Frontend, number: int, client: str = CLIENT, now_ns: int = NOW) -> list[Query]:
    frontend.handle(now_ns, client, a_predict(number, "one"), [some_bytes()])
    frontend.tick(now_ns)
    frontend.check()
    return sent(frontend, Query)


def answer(frontend: Frontend, query: Query) -> None:
    frontend.handle(NOW, SELECTOR, Answer(query.id, 0), ())
    frontend.tick(NOW)
    frontend.check()


def drained_clients(frontend: Frontend) -> list[str]:
    """Return the clients that got Drain since the last call."""
    clients = [out.to for out in frontend.out if isinstance(out.message, Drain)]
    sent(frontend, Drain)
    return clients


def test_a_draining_frontend_serves_its_clients_until_they_have_moved() -> None:
    frontend = connected_frontend()
    (first,) = send_predict(frontend, 1)
    frontend.drain()
    frontend.tick(NOW)
    assert not frontend.is_ready()
    assert drained_clients(frontend) == [CLIENT]
    (crossed,) = send_predict(frontend, 2)
    (other,) = send_predict(frontend, 1, OTHER)
    assert drained_clients(frontend) == [OTHER]
    for query in (first, crossed, other):
        assert not frontend.drained()
        answer(frontend, query)
    assert [reply.status for reply in sent(frontend, Answer)] == [Status.OK] * 3
    frontend.handle(NOW, CLIENT, Drain(), ())
    assert not frontend.drained(), "the other client may have sent more"
    frontend.handle(NOW, OTHER, PeerDisconnected(OTHER), ())
    assert frontend.drained()


def test_clients_that_do_not_move_are_refused_after_a_time() -> None:
    frontend = connected_frontend()
    frontend.drain()
    frontend.tick(NOW)
    (query,) = send_predict(frontend, 1)
    answer(frontend, query)
    sent(frontend, Answer)
    assert not frontend.drained()
    assert frontend.wakeup_ns() == NOW + SERVE_NS
    frontend.tick(NOW + SERVE_NS)
    assert frontend.drained()
    assert not send_predict(frontend, 2, now_ns=NOW + SERVE_NS)
    (refusal,) = sent(frontend, Answer)
    assert (refusal.status, refusal.reason, refusal.retry_after_ns) == (Status.REFUSED, "draining", ms(1000))


def test_clients_without_open_requests_move_too() -> None:
    """Their next request may be on its way."""
    frontend = connected_frontend()
    frontend.drain()
    frontend.handle(NOW, CLIENT, PeerConnected(CLIENT), ())
    assert drained_clients(frontend) == [CLIENT]
    assert not frontend.drained()
    frontend.handle(NOW, CLIENT, Drain(), ())
    assert frontend.drained()


def test_http_requests_are_served_until_their_connections_end() -> None:
    """The HTTP server ends each connection with a response: a client of HTTP cannot move by itself."""
    frontend = connected_frontend()
    frontend.drain()
    frontend.tick(NOW)
    assert send_predict(frontend, 1, HTTP, NOW + SERVE_NS)
    assert not drained_clients(frontend)


def test_a_drain_waits_for_calls() -> None:
    frontend = connected_frontend()
    frontend.handle(NOW, CLIENT, Declare(1, a_declaration()), ())
    frontend.drain()
    frontend.tick(NOW)
    assert not frontend.drained()
    frontend.handle(NOW, SELECTOR, PeerDisconnected(SELECTOR), ())
    assert frontend.drained()


def a_declaration() -> Any:
    return connected_frontend().declared.find_application("digits")


def test_queries_go_to_other_selectors_than_one_that_drains() -> None:
    frontend = connected_frontend()
    (query,) = send_predict(frontend, 1)
    frontend.handle(NOW, SELECTOR, Drain(), ())
    assert Out(SELECTOR, Drain()) in frontend.out, "no further query follows"
    announce(frontend, selector=SELECTOR)  # sent before it began to drain
    assert not send_predict(frontend, 2), "it waits for another selector"
    answer(frontend, query)
    assert [reply.id for reply in sent(frontend, Answer)] == [1]
    frontend.handle(NOW, THIRD, PeerConnected(THIRD), ())
    assert [out.to for out in frontend.out if isinstance(out.message, Query)] == [THIRD]
    frontend.handle(NOW, SELECTOR, PeerDisconnected(SELECTOR), ())
    assert len(sent(frontend, Query)) == 1, "the query is sent once"
    frontend.check()


def test_a_draining_selector_answers_what_its_frontends_have_sent() -> None:
    harness = ApplicationHarness(models=("a",))
    harness.query(1)
    harness.selector.drain()
    harness.run_until_idle()
    assert sent(harness.selector, Drain, FRONTEND)
    harness.send(FRONTEND, Query(2, "b/1", ms(100), 1, b""))
    harness.send(FRONTEND, Drain())
    (submit,) = [submit for submit in sent(harness.selector, Submit) if submit.model == "b/1"] or [harness.submits["b"]]
    assert not harness.selector.drained()
    harness.send_prediction(submit, 3)
    assert not harness.selector.drained()
    harness.predict("a", 4)
    assert harness.count_answers() == 2
    assert harness.selector.drained()


def test_a_draining_selector_waits_for_a_frontend_that_has_just_connected() -> None:
    harness = ApplicationHarness()
    harness.selector.drain()
    harness.send(FRONTEND, Drain())
    assert harness.selector.drained()
    harness.send("frontend/1#1", PeerConnected("frontend/1#1"))
    assert sent(harness.selector, Drain, "frontend/1#1")
    assert not harness.selector.drained()
    harness.send("frontend/1#1", PeerDisconnected("frontend/1#1"))
    assert harness.selector.drained()


def test_the_sdk_moves_to_another_connection_and_still_gets_the_answers_of_the_first() -> None:
    talk = Talk().knowing(a_spec("echo"))
    before = talk.predict()
    ((request, _),) = talk.sent()
    talk.get(Drain())
    assert talk.session.is_moving
    after = talk.predict(timeout=5)
    assert not talk.session.has_packets(talk.now_ns), "nothing more goes to a frontend that drains"
    assert [message for _, _, message, _ in unpack(talk.session.leave(), 1000)] == [Drain()]
    assert not talk.session.is_moving
    assert talk.session.on_connected(talk.now_ns) == 2
    assert [message for message, _ in talk.sent()] == [Hello(PROTOCOL, ())]
    talk.get(Answer(request.id, Status.LATE))
    assert before.end.status == Status.LATE
    talk.get(Welcome(PROTOCOL, ()))
    ((question, _),) = talk.sent()
    talk.get(Models(question.id, (), Status.REFUSED, "not all models are known yet"))
    assert not after.ends, "the other frontend may just have started"
    talk.after(s(1))
    ((question, _),) = talk.sent()
    talk.get(Models(question.id, (a_state(a_spec("echo")),)))
    assert [type(message) for message, _ in talk.sent()] == [Predict]
    talk.session.on_disconnected(talk.now_ns, 1)
    assert not after.ends
    talk.session.on_disconnected(talk.now_ns, 2)
    assert isinstance(after.end, Lost)


def test_requests_on_a_connection_that_was_left_end_with_it_and_are_not_cancelled_elsewhere() -> None:
    talk = Talk().knowing(a_spec("echo"))
    first, second = talk.predict(), talk.predict(inputs=X)
    talk.sent()
    talk.get(Drain())
    talk.session.leave()
    talk.session.on_connected(talk.now_ns)
    talk.sent()
    talk.get(Welcome(PROTOCOL, ()))
    talk.session.cancel(first.id)
    assert not [message for message, _ in talk.sent() if isinstance(message, Cancel)]
    talk.session.on_disconnected(talk.now_ns, 1)
    assert isinstance(second.end, Lost)
    assert not first.ends
