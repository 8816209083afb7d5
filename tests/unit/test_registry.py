"""Applications as a selector keeps them: declared, announced, refused by name, rolled back, withdrawn."""

from __future__ import annotations

import random
from typing import Any

import pytest

from builders import sent
from horologe_common.applications import Application
from horologe_common.core.protocol import PeerConnected
from horologe_common.status import Status
from horologe_common.wire import Applications, Declare, Rollback, Withdraw
from horologe_selector.core.selector import Selector
from horologe_selector.settings import SelectorSettings
from horologe_selector.store import RecordsWritten, WriteRecords
from selector_desk import FRONTEND, Asked


def test_declared_applications_are_announced_changed_rolled_back_and_withdrawn() -> None:
    desk = Asked()
    assert desk.declare(models=("a",), policy="").status == 0
    for _ in range(2):  # as a program does whenever it starts
        desk.declare(models=("a", "b"))
    desk.tell(FRONTEND, Rollback(3, "digits"))
    told = [told for told in sent(desk.selector, Applications, FRONTEND) if told.applications]
    assert told[-1].applications[0].application.models == ("a",)
    assert told[-1].applications[0].revision == 3
    desk.tell(FRONTEND, Withdraw(4, "digits"))
    assert [one.id for one in sent(desk.selector, Applications, FRONTEND)] == [4, 0]
    desk.ask()
    assert desk.answer()[0].status == Status.UNKNOWN_MODEL


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"policy": "best"}, "policy"),
        ({"models": ()}, "models"),
        ({"models": ("a", "a")}, "models"),
        ({"task": "detection"}, "task"),
        ({"loss": "hinge"}, "loss"),
        ({"settings": {"theta": 1.0}, "policy": "exp4"}, "settings"),
        ({"name": "a/b"}, "name"),
        ({"confidence": 2.0}, "confidence"),
        ({"task": "any", "policy": "exp4"}, "policy"),
    ],
)
def test_a_declaration_that_cannot_be_served_is_refused_by_name(fields: dict[str, Any], field: str) -> None:
    told = Asked().declare(**fields)
    assert told.status == Status.INVALID_INPUT
    assert told.reason.startswith(field)


def test_no_more_applications_are_declared_than_settings_allow() -> None:
    desk = Asked()
    desk.selector = Selector("selector/0#1", SelectorSettings(store="memory", applications=1), random.Random(1))
    desk.tell(FRONTEND, PeerConnected(FRONTEND))
    assert desk.declare("one", ("a",), policy="").status == 0
    told = desk.declare("two", ("a",), policy="")
    assert (told.status, told.reason) == (Status.REFUSED, "1 applications are declared already")
    assert desk.declare("one", ("b",), policy="").status == 0


def test_the_metrics_of_an_application_go_with_it() -> None:
    desk = Asked(models=("a",))
    desk.selector.refresh_stats()
    assert any(key[1:2] == ("digits",) for key in desk.selector.stats.values)
    desk.tell(FRONTEND, Withdraw(4, "digits"))
    assert not any(key[1:2] == ("digits",) for key in desk.selector.stats.values)


def test_applications_are_there_again_after_a_restart() -> None:
    desk = Asked(models=("a",))
    after = Asked()
    after.store = desk.store
    after.selector = Selector("selector/0#2", SelectorSettings(store="memory"), random.Random(1))
    after.tell(FRONTEND, PeerConnected(FRONTEND))
    (announced,) = sent(after.selector, Applications, FRONTEND)
    assert [state.application.name for state in announced.applications] == ["digits"]


def test_while_the_store_is_away_declarations_are_refused() -> None:
    desk = Asked()
    selector = desk.selector
    selector.handle(0, FRONTEND, Declare(7, Application("digits", ("a",))), ())
    (write,) = sent(selector, WriteRecords)
    selector.handle(0, "store/0", RecordsWritten(write.changes, None, "the state store is unavailable"), ())
    (told,) = [told for told in sent(selector, Applications) if told.id == 7]
    assert (told.status, told.reason) == (Status.REFUSED, "the state store is unavailable")


@pytest.mark.parametrize("models", [("a", "b"), ("a/1",), ("z", "a")])
def test_an_output_that_a_model_does_not_have_is_refused_by_name(models: tuple[str, ...]) -> None:
    told = Asked().declare(models=models, output="nope", policy="")
    assert (told.status, told.reason) == (
        Status.INVALID_INPUT,
        "output: got 'nope', wanted one of model "
        + {
            "a": "a: y",
            "a/1": "a/1: y",
            "z": "a: y",
        }[models[0]],
    )
    assert Asked().declare(models=models, output="y", policy="").status == 0


def test_of_models_that_are_not_served_nobody_knows_the_outputs() -> None:
    assert Asked().declare(models=("z",), output="nope", policy="").status == 0
    assert Asked().declare(models=("a",), shadows=("b",), output="nope", policy="").status == Status.INVALID_INPUT
