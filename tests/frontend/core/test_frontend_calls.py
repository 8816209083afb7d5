"""Calls of clients that the frontend forwards, and messages that it refuses or ignores."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from frontend.frontend_builders import (
    BARE,
    CLIENT,
    CONTROLLER,
    NOW,
    SAFE,
    SELECTOR,
    WORKER,
    a_frontend,
    an_observation,
    announce,
    connected_frontend,
    request_application,
    send_feedback,
    send_predict,
    the_answer,
)
from harness.builders import a_predict, a_spec, a_state, sent
from horologe_common.applications import Application
from horologe_common.clock import s
from horologe_common.core.protocol import PeerConnected, PeerDisconnected, role
from horologe_common.status import Status
from horologe_common.wire import (
    Acknowledged,
    Activity,
    Admit,
    Answer,
    ApplicationInfo,
    Applications,
    ApplicationState,
    Declare,
    Describe,
    Description,
    Dispatch,
    ModelInfo,
    Models,
    Ping,
    Pong,
    Query,
    Release,
    Rollback,
    Tune,
    Tuning,
    Watch,
    Withdraw,
)
from horologe_frontend.core.forwarding import CALLS_PER_CLIENT

OTHER, USER, HTTP, TUNER = "client/bb", "user/07", "http/0#1", "tuner/0#1"
STATES = Applications(0, (ApplicationState(SAFE, 2),))


def test_model_info_and_describe() -> None:
    frontend = a_frontend()
    frontend.handle(0, CLIENT, ModelInfo(3), ())
    assert sent(frontend, Models, CLIENT)[0].models == (a_state(a_spec(cache=True)),)
    frontend.handle(0, CLIENT, Describe(4), ())
    (asked,) = sent(frontend, Describe, CONTROLLER)
    frontend.handle(0, CONTROLLER, Description(asked.id, (), "edf", 0), ())
    assert sent(frontend, Description, CLIENT)[0].id == 4


@pytest.mark.parametrize(
    ("message", "reply", "receiver"),
    [
        (Declare(3, SAFE), STATES, SELECTOR),
        (Withdraw(3, "digits"), STATES, SELECTOR),
        (Rollback(3, "digits"), STATES, SELECTOR),
        (ApplicationInfo(3, "digits", "u"), STATES, SELECTOR),
        (Admit(3, "one", "", True), Models(0, (a_state(),)), CONTROLLER),
        (Watch(3, 17), Activity(0, 20), CONTROLLER),
        (Tune(3, "apply", b"{}", True), Tuning(0, b"[]"), TUNER),
    ],
)
def test_a_call_is_forwarded_and_has_one_reply(message: Any, reply: Any, receiver: str) -> None:
    frontend = connected_frontend()
    frontend.handle(0, TUNER, PeerConnected(TUNER), ())
    frontend.handle(NOW, CLIENT, message, ())
    (passed,) = sent(frontend, type(message), receiver)
    assert replace(passed, id=3) == message
    frontend.handle(NOW, receiver, replace(reply, id=passed.id), ())
    assert sent(frontend, type(reply), CLIENT) == [replace(reply, id=3)]
    frontend.handle(NOW, CLIENT, message, ())
    frontend.handle(NOW, receiver, PeerDisconnected(receiver), ())
    disconnected = sent(frontend, type(reply), CLIENT)
    frontend.handle(NOW, CLIENT, message, ())
    not_connected = sent(frontend, type(reply), CLIENT)
    name = role(receiver)
    reasons = [] if name == "controller" else [f"the {name} disconnected"]  # a controller may return, and reply
    assert [lost.reason for lost in disconnected] == reasons
    assert [lost.reason for lost in not_connected] == [f"the {name} is not connected"]
    assert {(lost.id, lost.status) for lost in (*disconnected, *not_connected)} == {(3, Status.LOST)}
    assert name == "tuner" or not frontend.is_ready()
    frontend.check()


def test_a_load_may_take_longer_than_other_calls() -> None:
    frontend = a_frontend(load_timeout_ns=s(300))
    frontend.handle(0, CLIENT, Admit(1, "sum", "", True), ())
    frontend.handle(0, CLIENT, Describe(2), ())
    frontend.tick(s(60))
    assert sent(frontend, Description, CLIENT)
    assert not sent(frontend, Models, CLIENT)
    assert frontend.wakeup_ns() == s(300)
    frontend.tick(s(300))
    assert [models.status for models in sent(frontend, Models, CLIENT)] == [Status.LOST]


def test_calls_of_one_client_are_bounded() -> None:
    frontend = a_frontend()
    for number in range(CALLS_PER_CLIENT + 5):
        frontend.handle(0, CLIENT, Admit(number, "sum", "", True), ())
    assert len(sent(frontend, Admit, CONTROLLER)) == CALLS_PER_CLIENT
    replies = sent(frontend, Models, CLIENT)
    assert [(reply.id, reply.status) for reply in replies] == [
        (number, Status.REFUSED) for number in range(CALLS_PER_CLIENT, CALLS_PER_CLIENT + 5)
    ]
    frontend.handle(0, OTHER, Admit(1, "sum", "", True), ())
    assert len(sent(frontend, Admit, CONTROLLER)) == 1
    frontend.check()


def test_calls_of_all_clients_are_bounded() -> None:
    frontend = connected_frontend(max_pending=2)
    for number in range(3):
        frontend.handle(NOW, CLIENT, ApplicationInfo(number, "digits"), ())
    assert len(sent(frontend, ApplicationInfo, SELECTOR)) == 2
    (reply,) = sent(frontend, Applications, CLIENT)
    assert (reply.id, reply.status, reply.reason) == (2, Status.REFUSED, "2 calls are pending already")


def test_calls_of_a_disconnected_client_are_dropped() -> None:
    frontend = a_frontend()
    frontend.handle(0, CLIENT, Admit(1, "sum", "", True), ())
    (admit,) = sent(frontend, Admit, CONTROLLER)
    frontend.handle(0, CLIENT, PeerDisconnected(CLIENT), ())
    frontend.check()
    frontend.handle(0, CONTROLLER, Models(admit.id, ()), ())
    assert not sent(frontend, Models)


@pytest.mark.parametrize(
    "message",
    [
        Admit(3, "one", "", False),
        Declare(3, Application("a", ("one",))),
        Withdraw(3, "a"),
        Rollback(3, "a"),
        Tune(3, "apply"),
        Tune(3, "withdraw"),
    ],
)
def test_users_may_not_manage(message: Any) -> None:
    frontend = connected_frontend()
    frontend.handle(0, TUNER, PeerConnected(TUNER), ())
    frontend.handle(0, USER, message, ())
    (out,) = frontend.out
    assert (out.to, out.message.id, out.message.status) == (USER, 3, Status.FORBIDDEN)
    assert "frontend.client_management" in out.message.reason
    frontend.handle(0, HTTP, message, ())
    assert len(sent(frontend, type(message))) == 1


@pytest.mark.parametrize("message", [ApplicationInfo(3, "digits", ""), Tune(3, "status")])
def test_users_may_read(message: Any) -> None:
    frontend = connected_frontend()
    frontend.handle(0, TUNER, PeerConnected(TUNER), ())
    frontend.handle(0, USER, message, ())
    assert [out.to for out in frontend.out] == [TUNER if isinstance(message, Tune) else SELECTOR]


def test_messages_of_services_are_ignored_from_clients() -> None:
    frontend = connected_frontend()
    send_predict(frontend, a_predict(1, "one"))
    (query,) = sent(frontend, Query)
    passed = send_feedback(frontend, an_observation())
    for message in (
        Answer(query.id, 0),
        Release((query.id,)),
        Dispatch(1, WORKER, (query.id,)),
        Models(0, ()),
        Applications(0, ()),
        Acknowledged(passed.id, (0,)),
        Ping(1),
        Pong(1, 1),
    ):
        frontend.handle(1, CLIENT, message, ())
    assert not frontend.out
    assert query.id in frontend.staging
    assert frontend.catalogue.model_states()
    assert request_application(frontend)


@pytest.mark.parametrize("context", ["u" * 129, "u\0"])
def test_context_that_cannot_be_stored_is_invalid(context: str) -> None:
    frontend = connected_frontend()
    frontend.handle(NOW, CLIENT, ApplicationInfo(3, "digits", context), ())
    (reply,) = sent(frontend, Applications, CLIENT)
    assert reply.status == Status.INVALID_INPUT
    assert reply.reason.startswith("context: got ")
    request_application(frontend, context=context)
    assert the_answer(frontend).status == Status.INVALID_INPUT
    assert send_feedback(frontend, an_observation(context=context)) is None
    assert not sent(frontend, ApplicationInfo)


def test_contradictory_declaration_is_not_forwarded() -> None:
    frontend = connected_frontend()
    frontend.handle(NOW, CLIENT, Declare(3, Application("a", ("one", "one"))), ())
    assert sent(frontend, Applications, CLIENT)[0].status == Status.INVALID_INPUT
    assert not frontend.out


def test_announcement_replaces_the_previous_one() -> None:
    frontend = connected_frontend()
    announce(frontend, BARE)
    request_application(frontend)
    assert the_answer(frontend).status == Status.UNKNOWN_MODEL
    assert request_application(frontend, "bare")
