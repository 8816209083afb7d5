"""Registry of applications: declared, announced, refused, rolled back, withdrawn."""

from __future__ import annotations

import random
import re
from typing import Any

import msgspec
import pytest

from harness.builders import sent
from horologe_common.applications import BYTES_LIMIT, MODELS_LIMIT, Application, check_application
from horologe_common.core.protocol import PeerConnected
from horologe_common.status import InvalidInput, Status
from horologe_common.wire import PEER_HEADER_LIMIT, Applications, Rollback, Withdraw
from horologe_selector.core.applications.application_registry import APPLICATIONS_LIMIT
from horologe_selector.core.selector import Selector
from horologe_selector.settings import SelectorSettings
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
        ({"contexts": 0}, "contexts"),
        ({"contexts": 10**30}, "contexts"),
        ({"default": 1e300}, "default"),
        ({"default": float("inf")}, "default"),
        ({"default": float("nan")}, "default"),
        ({"default": float("nan"), "task": "regression"}, "default"),
        ({"default": float("inf"), "task": "regression"}, "default"),
        ({"default": 0.5}, "default"),
        ({"default": 1.0, "task": "any"}, "default"),
        ({"output": "y" * BYTES_LIMIT}, "application"),
        ({"task": "any", "policy": "exp4"}, "policy"),
    ],
)
def test_an_invalid_declaration_is_refused_naming_the_field(fields: dict[str, Any], field: str) -> None:
    reply = ApplicationHarness().declare_application(**fields)
    assert reply.status == Status.INVALID_INPUT
    assert re.match(rf"{field}\b.*: ", reply.reason)


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
    harness.store.unavailable = True
    reply = harness.declare_application()
    assert (reply.status, reply.reason) == (Status.REFUSED, "unplugged")


@pytest.mark.parametrize(
    ("models", "shadows", "checked"),
    [(("a", "b"), (), "a"), (("a/1",), (), "a/1"), (("z", "a"), (), "a"), (("z",), ("b",), "b")],
)
def test_a_declaration_with_an_unknown_output_is_refused(models: Any, shadows: Any, checked: str) -> None:
    fields = {"models": models, "shadows": shadows, "policy": ""}
    reply = ApplicationHarness().declare_application(output="nope", **fields)
    reason = f"output: got 'nope', wanted one of model {checked}: y"
    assert (reply.status, reply.reason) == (Status.INVALID_INPUT, reason)
    assert ApplicationHarness().declare_application(output="y", **fields).status == 0


def test_outputs_of_models_that_are_not_served_are_not_checked() -> None:
    assert ApplicationHarness().declare_application(models=("z",), output="nope", policy="").status == 0


@pytest.mark.parametrize("name", ["/", "m/", "/1", "m/1/2"])
@pytest.mark.parametrize("shadow", [False, True])
def test_models_have_a_name_and_an_optional_version(name: str, shadow: bool) -> None:
    with pytest.raises(InvalidInput, match=f"^{'shadows' if shadow else 'models'}: got '{name}', wanted name"):
        check_application(Application("a", ("ok", "ok/2") if shadow else (name,), shadows=(name,) if shadow else ()))


def test_the_error_for_a_long_list_is_short() -> None:
    with pytest.raises(InvalidInput) as error:
        check_application(Application("a", tuple(f"m{number}" for number in range(100_000))))
    assert error.value.reason == "models, shadows: got 100000 names, wanted 1 to 64, each once"


@pytest.mark.parametrize("fields", [{"default": float(1 << 53)}, {"default": -1e300, "task": "regression"}])
def test_the_largest_defaults_are_valid(fields: dict[str, Any]) -> None:
    check_application(Application("a", ("m",), **fields))


def test_the_maximum_number_of_models_with_long_names_fits() -> None:
    application = Application("a" * 128, tuple(f"{number:0100}" for number in range(MODELS_LIMIT)))
    check_application(application)
    assert len(msgspec.msgpack.encode(application)) > BYTES_LIMIT // 2


def test_all_applications_fit_into_one_announcement() -> None:
    assert APPLICATIONS_LIMIT * BYTES_LIMIT < PEER_HEADER_LIMIT
