"""Registry of applications: declared, announced, refused, rolled back, withdrawn."""

from __future__ import annotations

import random
from typing import Any

import pytest

from harness.builders import sent
from horologe_common.applications import Application
from horologe_common.core.protocol import PeerConnected
from horologe_common.status import Status
from horologe_common.wire import Applications, Declare, Rollback, Withdraw
from horologe_selector.core.applications.application_registry import APPLICATIONS_LIMIT
from horologe_selector.core.selector import Selector
from horologe_selector.settings import SelectorSettings
from horologe_selector.store import RecordsWritten, WriteRecords
from selector.selector_harness import FRONTEND, ApplicationHarness


def test_declared_applications_are_announced_changed_rolled_back_and_withdrawn() -> None:
    harness = ApplicationHarness()
    assert harness.declare_application(models=("a",), policy="").status == 0
    for _ in range(2):  # the second declaration changes nothing
        harness.declare_application(models=("a", "b"))
    harness.send(FRONTEND, Rollback(3, "digits"))
    replies = [reply for reply in sent(harness.selector, Applications, FRONTEND) if reply.applications]
    assert replies[-1].applications[0].application.models == ("a",)
    assert replies[-1].applications[0].revision == 3
    harness.send(FRONTEND, Withdraw(4, "digits"))
    assert [reply.id for reply in sent(harness.selector, Applications, FRONTEND)] == [4, 0]
    harness.query()
    assert harness.pop_answer()[0].status == Status.UNKNOWN_MODEL


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
def test_an_invalid_declaration_is_refused_naming_the_field(fields: dict[str, Any], field: str) -> None:
    reply = ApplicationHarness().declare_application(**fields)
    assert reply.status == Status.INVALID_INPUT
    assert reply.reason.startswith(field)


def test_the_number_of_applications_is_limited() -> None:
    harness = ApplicationHarness()
    for number in range(APPLICATIONS_LIMIT):
        assert harness.declare_application(f"{number}", ("a",), policy="").status == 0
    reply = harness.declare_application("another", ("a",), policy="")
    assert (reply.status, reply.reason) == (Status.REFUSED, "1000 applications are declared already")
    assert harness.declare_application("0", ("b",), policy="").status == 0


def test_withdrawing_an_application_removes_its_metrics() -> None:
    harness = ApplicationHarness(models=("a",))
    harness.selector.refresh_stats()
    assert any(key[1:2] == ("digits",) for key in harness.selector.stats.values)
    harness.send(FRONTEND, Withdraw(4, "digits"))
    assert not any(key[1:2] == ("digits",) for key in harness.selector.stats.values)


def test_applications_survive_a_restart() -> None:
    harness = ApplicationHarness(models=("a",))
    after = ApplicationHarness()
    after.store = harness.store
    after.selector = Selector("selector/0#2", SelectorSettings(store="memory"), random.Random(1))
    after.send(FRONTEND, PeerConnected(FRONTEND))
    (announced,) = sent(after.selector, Applications, FRONTEND)
    assert [state.application.name for state in announced.applications] == ["digits"]


def test_declarations_are_refused_while_the_store_is_unavailable() -> None:
    harness = ApplicationHarness()
    selector = harness.selector
    selector.handle(0, FRONTEND, Declare(7, Application("digits", ("a",))), ())
    (write,) = sent(selector, WriteRecords)
    selector.handle(0, "store/0", RecordsWritten(write.changes, None, "the state store is unavailable"), ())
    (reply,) = [reply for reply in sent(selector, Applications) if reply.id == 7]
    assert (reply.status, reply.reason) == (Status.REFUSED, "the state store is unavailable")


@pytest.mark.parametrize("models", [("a", "b"), ("a/1",), ("z", "a")])
def test_a_declaration_with_an_unknown_output_is_refused(models: tuple[str, ...]) -> None:
    reply = ApplicationHarness().declare_application(models=models, output="nope", policy="")
    assert (reply.status, reply.reason) == (
        Status.INVALID_INPUT,
        "output: got 'nope', wanted one of model "
        + {
            "a": "a: y",
            "a/1": "a/1: y",
            "z": "a: y",
        }[models[0]],
    )
    assert ApplicationHarness().declare_application(models=models, output="y", policy="").status == 0


def test_outputs_of_models_that_are_not_served_are_not_checked() -> None:
    assert ApplicationHarness().declare_application(models=("z",), output="nope", policy="").status == 0
    assert (
        ApplicationHarness().declare_application(models=("a",), shadows=("b",), output="nope", policy="").status
        == Status.INVALID_INPUT
    )
