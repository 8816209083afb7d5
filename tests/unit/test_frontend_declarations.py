"""Declarations at the frontend: passed on, and taken over as they are announced."""

from __future__ import annotations

from typing import Any

import pytest

from builders import sent
from frontend_builders import BARE, CLIENT, NOW, SAFE, SELECTOR, a_frontend, announce, ask, give, item, the_answer
from horologe_common.applications import Application
from horologe_common.core.protocol import PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import (
    Acknowledged,
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
def test_declarations_are_the_selectors_affair(message: Any) -> None:
    frontend = a_frontend()
    frontend.handle(NOW, CLIENT, message, ())
    (passed,) = sent(frontend, type(message), SELECTOR)
    told = Applications(passed.id, (ApplicationState(SAFE, 2),))
    frontend.handle(NOW, SELECTOR, told, ())
    (answer,) = sent(frontend, Applications, CLIENT)
    assert (answer.id, answer.applications, answer.status) == (3, told.applications, Status.OK)
    frontend.handle(NOW, CLIENT, message, ())
    frontend.handle(NOW, SELECTOR, PeerDisconnected(SELECTOR), ())
    frontend.handle(NOW, CLIENT, message, ())
    went, away = sent(frontend, Applications, CLIENT)
    assert (went.status, away.status) == (Status.LOST, Status.LOST)
    assert (went.reason, away.reason) == ("the selector disconnected", "the selector is not connected")


@pytest.mark.parametrize("context", ["u" * 129, "u\0"])
def test_a_context_that_could_not_be_kept_is_invalid_wherever_it_comes(context: str) -> None:
    frontend = a_frontend()
    frontend.handle(NOW, CLIENT, ApplicationInfo(3, "digits", context), ())
    (told,) = sent(frontend, Applications, CLIENT)
    assert told.status == Status.INVALID_INPUT
    assert told.reason.startswith("context: got ")
    ask(frontend, context=context)
    assert the_answer(frontend).status == Status.INVALID_INPUT
    assert give(frontend, item(context=context)) is None
    assert not sent(frontend, ApplicationInfo)


def test_questions_that_are_open_are_bounded() -> None:
    frontend = a_frontend(max_pending=2)
    for number in range(3):
        frontend.handle(NOW, CLIENT, ApplicationInfo(number, "digits"), ())
    assert len(sent(frontend, ApplicationInfo, SELECTOR)) == 2
    (told,) = sent(frontend, Applications, CLIENT)
    assert (told.id, told.status) == (2, Status.LOST)
    assert told.reason == "the selector has 2 pending calls already"


def test_a_declaration_that_contradicts_itself_goes_no_further() -> None:
    frontend = a_frontend()
    frontend.handle(NOW, CLIENT, Declare(3, Application("a", ("one", "one"))), ())
    assert sent(frontend, Applications, CLIENT)[0].status == Status.INVALID_INPUT
    assert not frontend.out


def test_an_announcement_replaces_all_that_was_announced() -> None:
    frontend = a_frontend()
    announce(frontend, BARE)
    ask(frontend)
    assert the_answer(frontend).status == Status.UNKNOWN_MODEL
    assert ask(frontend, "bare")


def test_a_client_cannot_announce_or_acknowledge() -> None:
    frontend = a_frontend()
    passed = give(frontend, item())
    assert passed is not None
    frontend.handle(NOW, CLIENT, Applications(0, ()), ())
    frontend.handle(NOW, CLIENT, Acknowledged(passed.id, (0,)), ())
    assert not frontend.out
    assert ask(frontend)
