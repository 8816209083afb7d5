"""Declarations of applications: forwarded to the selector, and stored when the selector announces them."""

from __future__ import annotations

from typing import Any

import pytest

from frontend.frontend_builders import (
    BARE,
    CLIENT,
    NOW,
    SAFE,
    SELECTOR,
    an_observation,
    announce,
    connected_frontend,
    request_application,
    send_feedback,
    the_answer,
)
from harness.builders import sent
from horologe_common.applications import Application
from horologe_common.core.protocol import PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import (
    Acknowledged,
    Admit,
    ApplicationInfo,
    Applications,
    ApplicationState,
    Declare,
    Rollback,
    Withdraw,
)


@pytest.mark.parametrize(
    "message", [Declare(3, SAFE), Withdraw(3, "digits"), Rollback(3, "digits"), ApplicationInfo(3, "digits", "u")]
)
def test_declarations_are_forwarded_to_the_selector(message: Any) -> None:
    frontend = connected_frontend()
    frontend.handle(NOW, CLIENT, message, ())
    (passed,) = sent(frontend, type(message), SELECTOR)
    reply = Applications(passed.id, (ApplicationState(SAFE, 2),))
    frontend.handle(NOW, SELECTOR, reply, ())
    (answer,) = sent(frontend, Applications, CLIENT)
    assert (answer.id, answer.applications, answer.status) == (3, reply.applications, Status.OK)
    frontend.handle(NOW, CLIENT, message, ())
    frontend.handle(NOW, SELECTOR, PeerDisconnected(SELECTOR), ())
    frontend.handle(NOW, CLIENT, message, ())
    disconnected, not_connected = sent(frontend, Applications, CLIENT)
    assert (disconnected.status, not_connected.status) == (Status.LOST, Status.LOST)
    assert (disconnected.reason, not_connected.reason) == ("the selector disconnected", "the selector is not connected")


@pytest.mark.parametrize(
    "message", [Declare(3, SAFE), Withdraw(3, "digits"), Rollback(3, "digits"), Admit(3, "echo", "", False)]
)
def test_a_client_whose_key_does_not_permit_management_changes_nothing(message: Any) -> None:
    frontend = connected_frontend()
    frontend.handle(NOW, "user/07", message, ())
    (out,) = frontend.out
    assert (out.to, out.message.id, out.message.status) == ("user/07", 3, Status.FORBIDDEN)
    frontend.out.clear()
    frontend.handle(NOW, "user/07", ApplicationInfo(4, "digits", ""), ())
    assert [out.to for out in frontend.out] == [SELECTOR]


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


def test_pending_calls_are_bounded() -> None:
    frontend = connected_frontend(max_pending=2)
    for number in range(3):
        frontend.handle(NOW, CLIENT, ApplicationInfo(number, "digits"), ())
    assert len(sent(frontend, ApplicationInfo, SELECTOR)) == 2
    (reply,) = sent(frontend, Applications, CLIENT)
    assert (reply.id, reply.status) == (2, Status.REFUSED)
    assert reply.reason == "2 calls are pending already"


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


def test_announcement_of_a_client_is_ignored() -> None:
    frontend = connected_frontend()
    passed = send_feedback(frontend, an_observation())
    assert passed is not None
    frontend.handle(NOW, CLIENT, Applications(0, ()), ())
    frontend.handle(NOW, CLIENT, Acknowledged(passed.id, (0,)), ())
    assert not frontend.out
    assert request_application(frontend)
