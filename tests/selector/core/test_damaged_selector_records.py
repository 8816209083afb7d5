"""Damaged records of applications and contexts: kept, reported, and only what needs them is not served."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from harness.builders import sent
from harness.damaged_files import EXTREMES, damaged_values
from horologe_common.applications import Application
from horologe_common.clock import ms
from horologe_common.status import Status
from horologe_common.wire import Acknowledged, ApplicationInfo, Declare, Feedback, Observation, Rollback, Withdraw
from horologe_selector.policies import POLICIES
from horologe_selector.store import TIMES, DamagedRecord, RecordChange
from selector import selector_harness
from selector.learning_selector import OK, REFUSED, LearningSelector
from selector.selector_harness import FRONTEND, UnavailableStore

DIGITS, LETTERS = "applications\ndigits", "applications\nletters"


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the keys of the records that selectors report as damaged."""
    keys: list[str] = []
    execute = selector_harness.store_replies

    def collect(store: UnavailableStore, message: Any) -> list[Any]:
        keys.extend([message.key] if isinstance(message, DamagedRecord) else [])
        return execute(store, message)

    monkeypatch.setattr(selector_harness, "store_replies", collect)
    return keys


def replace_record(store: UnavailableStore, key: str, data: bytes) -> None:
    (record,) = store.read_records([key])
    (result,) = store.write_changes([RecordChange(key, record.version if record else 0, data)])
    assert isinstance(result, int)


def read_data(store: UnavailableStore, key: str) -> bytes:
    (record,) = store.read_records([key])
    assert record
    return record.data


def twice(data: bytes, key: str) -> bytes:
    """Return the record with a field of its last declaration twice."""
    content = msgspec.msgpack.decode(data)
    declaration = msgspec.msgpack.encode(content[1][-1])
    doubled = bytes([declaration[0] + 1]) + declaration[1:] + msgspec.msgpack.encode(key) + b"\xa1x"
    return msgspec.msgpack.encode([content[0], [msgspec.Raw(doubled)]])


RANDOM = random.Random(7).randbytes(200)
DAMAGE: dict[str, Any] = {
    "truncated": lambda data: data[:-5],
    "empty": lambda data: b"",
    "random bytes": lambda data: RANDOM,
    "JSON": lambda data: b'{"revision": 1}',
    "another type": lambda data: msgspec.msgpack.encode({"a": 1}),
    "no declarations": lambda data: msgspec.msgpack.encode([1, []]),
    "nested": lambda data: b"\x91" * 50_000,
    "huge length": lambda data: b"\x92\x01\xdd\xff\xff\xff\xff",
    "huge revision": lambda data: msgspec.msgpack.encode([1 << 63, msgspec.msgpack.decode(data)[1]]),
    "many declarations": lambda data: msgspec.msgpack.encode([1, msgspec.msgpack.decode(data)[1] * 5000]),
    "doubled field": lambda data: twice(data, "task"),
    "another name": lambda data: data.replace(b"digits", b"letter"),
    "a field of a newer version": lambda data: data.replace(b"policy", b"newpol"),
    "a policy of a newer version": lambda data: data.replace(b"exp4", b"exp9"),
    "a record of a context": lambda data: msgspec.msgpack.encode([1, {1: 1}, ["exp4", {"a": 0.0}], bytes(64)]),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_declaration_makes_only_its_application_unavailable(damage: str, reported: list[str]) -> None:
    store = LearningSelector().store
    data = DAMAGE[damage](read_data(store, DIGITS))
    replace_record(store, DIGITS, data)
    harness = LearningSelector(store)
    answer = harness.query("digits")
    assert (answer.status, answer.retry_after_ns) == (REFUSED, 0)
    assert "'digits' is unavailable: its stored declaration is not valid" in answer.reason
    assert harness.learn("digits", "", b"") == REFUSED
    assert harness.query("letters").status == OK
    assert reported == [DIGITS]
    states = harness.call(ApplicationInfo(1)).applications
    assert [(state.application.name, bool(state.unavailable)) for state in states] == [
        ("letters", False), ("digits", True),
    ]  # fmt: skip
    assert harness.call(ApplicationInfo(2, "digits")).status == REFUSED
    assert harness.call(Rollback(3, "digits")).status == Status.INVALID_INPUT
    assert read_data(store, DIGITS) == data
    assert harness.call(Declare(4, Application("digits", ("a", "b")))).status == OK
    assert harness.query("digits").status == OK
    assert [record.data for record in store.list_family("damaged")] == [data]


def test_a_damaged_declaration_can_be_withdrawn() -> None:
    store = LearningSelector().store
    replace_record(store, DIGITS, b"damaged")
    harness = LearningSelector(store)
    assert harness.call(Withdraw(3, "digits")).status == OK
    assert harness.query("digits").status == Status.UNKNOWN_MODEL
    assert [record.data for record in store.list_family("damaged")] == [b"damaged"]


def test_an_application_whose_record_is_damaged_while_it_serves_is_unavailable_until_it_is_declared(
    reported: list[str],
) -> None:
    harness = LearningSelector()
    registry = harness.selector.applications.registry
    registry._shared = True
    replace_record(harness.store, DIGITS, b"")
    harness.advance_by(ms(1001))
    assert harness.query("digits").status == REFUSED
    assert harness.query("letters").status == OK
    assert harness.call(Declare(4, Application("digits", ("a",)))).status == OK
    assert harness.query("digits").status == OK
    assert reported == [DIGITS]


def test_a_rollback_to_a_damaged_declaration_changes_nothing() -> None:
    harness = LearningSelector()
    harness.declare_application("digits", ("a",), policy="static")
    content = msgspec.msgpack.decode(read_data(harness.store, DIGITS))
    content[1][0]["policy"] = "exp9"
    replace_record(harness.store, DIGITS, msgspec.msgpack.encode(content))
    again = LearningSelector(harness.store)
    assert again.query("digits").status == OK
    reply = again.call(Rollback(3, "digits"))
    assert (reply.status, reply.reason[:6]) == (Status.INVALID_INPUT, "policy")
    assert again.query("digits").status == OK


@pytest.mark.parametrize("policy", POLICIES)
def test_no_damaged_value_of_a_declaration_is_a_fault(policy: str) -> None:
    store = LearningSelector(policy=policy).store
    intact = read_data(store, DIGITS)
    content = msgspec.msgpack.decode(intact)
    content[1][0]["settings"] = {"memory": 50.0, "weights": {"a": 1.0}}
    for name, damaged in damaged_values(content):
        try:
            replace_record(store, DIGITS, msgspec.msgpack.encode(damaged))
        except OverflowError:
            continue
        harness = LearningSelector(store)
        answer = harness.query("digits")
        harness.advance_by(ms(200))
        assert answer.status != Status.UNKNOWN_MODEL or "not served" in answer.reason, name
        assert harness.query("letters").status == OK, name


CONTEXT = "contexts/digits\nann"


def learned(policy: str = "exp4") -> LearningSelector:
    """Return a selector that has learned in two contexts of `digits`, and in one of `letters`."""
    harness = LearningSelector(policy=policy)
    for name, context in (("digits", "ann"), ("digits", "bob"), ("letters", "ann")):
        assert harness.learn(name, context, harness.query(name, context).prediction) == OK
    return harness


def state_of(record: bytes) -> Any:
    return msgspec.msgpack.decode(record)[2]


CONTEXT_DAMAGE: dict[str, Any] = {
    **{name: DAMAGE[name] for name in ("truncated", "random bytes", "JSON", "another type", "nested", "huge length")},
    "a record of an application": lambda data: msgspec.msgpack.encode([1, [{"name": "digits", "models": ["a"]}]]),
    "too large": lambda data: data + bytes(1 << 21),
    "without fields": lambda data: msgspec.msgpack.encode(msgspec.msgpack.decode(data)[:2]),
    "without state": lambda data: msgspec.msgpack.encode([1, {1: 1}, None, bytes(64)]),
    "a state of no policy": lambda data: msgspec.msgpack.encode([1, {1: 1}, ["exp9", {"a": 0.0}], bytes(64)]),
    **{
        f"log weight {extreme}": lambda data, extreme=extreme: msgspec.msgpack.encode(
            [1, {1: 1}, ["exp4", {"a": extreme, "b": 0.0}], bytes(64)]
        )
        for extreme in EXTREMES
        if not -1e30 <= extreme <= 0
    },
}


@pytest.mark.parametrize("damage", CONTEXT_DAMAGE)
def test_a_damaged_context_starts_again_and_is_kept(damage: str, reported: list[str]) -> None:
    store = learned().store
    others = [read_data(store, key) for key in ("contexts/digits\nbob", "contexts/letters\nann")]
    data = CONTEXT_DAMAGE[damage](read_data(store, CONTEXT))
    replace_record(store, CONTEXT, data)
    harness = LearningSelector(store)
    answer = harness.query("digits", "ann")
    assert answer.status == OK
    assert reported == [CONTEXT]
    assert read_data(store, CONTEXT) == data
    assert harness.learn("digits", "ann", answer.prediction) == OK
    assert state_of(read_data(store, CONTEXT))[0] == "exp4"
    assert [record.data for record in store.list_family("damaged")] == [data]
    assert [read_data(store, key) for key in ("contexts/digits\nbob", "contexts/letters\nann")] == others
    assert harness.call(ApplicationInfo(5, "digits", "ann")).status == OK


def test_the_status_of_a_damaged_context_is_that_of_a_new_one() -> None:
    store = learned().store
    replace_record(store, CONTEXT, b"damaged")
    (state,) = LearningSelector(store).call(ApplicationInfo(5, "digits", "ann")).applications
    assert [statistics.weight for statistics in state.statistics] == [0.5, 0.5]


def test_a_damaged_record_is_copied_also_if_the_first_write_fails() -> None:
    store = learned().store
    replace_record(store, CONTEXT, b"damaged")
    harness = LearningSelector(store)
    answer = harness.query("digits", "ann")
    store.unavailable = True
    harness.number += 1
    harness.send(FRONTEND, Feedback(harness.number, "digits", (Observation((2.0,), answer.prediction, "ann"),)))
    store.unavailable = False
    harness.advance_by(TIMES.retry_ns)
    assert [message.statuses for message in sent(harness.selector, Acknowledged)] == [(OK,)]
    assert [record.data for record in store.list_family("damaged")] == [b"damaged"]


def test_a_state_of_another_policy_is_not_damaged(reported: list[str]) -> None:
    harness = learned("thompson")
    harness.declare_application("digits", ("a", "b"), policy="exp4")
    again = LearningSelector(harness.store)
    assert again.query("digits", "ann").status == OK
    assert not reported


@pytest.mark.parametrize("policy", POLICIES)
def test_no_damaged_value_of_a_context_is_a_fault(policy: str) -> None:
    harness = learned(policy)
    state = harness.selector.applications.registry.active["digits"].policy.init()
    content = [1, {1: 1}, msgspec.to_builtins(state), bytes(64)]
    for name, damaged in damaged_values(content):
        try:
            data = msgspec.msgpack.encode(damaged)
        except OverflowError:
            continue
        harness.store.trim_family("contexts/digits", 0)
        harness.store.write_changes([RecordChange(CONTEXT, 0, data)])
        again = LearningSelector(harness.store)
        answer = again.query("digits", "ann")
        assert answer.status == OK, name
        assert again.learn("digits", "ann", answer.prediction) == OK, name
        assert again.call(ApplicationInfo(5, "digits", "ann")).status == OK, name
