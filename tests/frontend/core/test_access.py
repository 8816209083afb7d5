"""What keys permit: scopes by name, rates, rotation, and messages of the SDK."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fakes.key_entries import entry, hash_of
from horologe_common.applications import Application
from horologe_common.clock import ms, s
from horologe_common.core.instruments import Stats
from horologe_common.recording.snapshot import restore, snapshot
from horologe_common.status import Forbidden, Refused, Unauthenticated
from horologe_common.wire import (
    Admit,
    ApplicationInfo,
    Declare,
    Describe,
    Feedback,
    ModelInfo,
    PipelineInfo,
    Predict,
    Rollback,
    Tune,
    Watch,
    Withdraw,
)
from horologe_frontend.core.access import COUNTED_KEYS, Access, KeyEntry, Scope, TokenBucket


def access_with(**entries: KeyEntry) -> Access:
    access = Access()
    access.replace_keys(entries)
    return access


def permits(access: Access, name: str, scope: Scope, target: str = "") -> bool:
    try:
        access.authenticate(b"Bearer " + name.encode()).check(scope, target)
    except Forbidden:
        return False
    return True


def test_scopes_are_separate_and_off_unless_given() -> None:
    access = access_with(
        none=entry("none"),
        user=entry("user", infer=("digits*", "exact", "a[1]")),
        viewer=entry("viewer", observe=True),
        manager=entry("manager", manage=True),
    )
    expected = {
        "none": {"key"},
        "user": {"key", "infer digits", "infer digits-2", "infer exact", "infer a[1]", "infer a1"}
        | {"read digits", "read digits-2", "read exact", "read a[1]", "read a1"},
        "viewer": {"key", "observe"} | {f"read {name}" for name in NAMES},
        "manager": {"key", "manage"},
    }
    for name, permitted in expected.items():
        got = {scope.name.lower() for scope in Scope if scope.name in ("KEY", "OBSERVE", "MANAGE")}
        got = {scope for scope in got if permits(access, name, Scope[scope.upper()])}
        for scope in (Scope.INFER, Scope.READ):
            got |= {f"{scope.name.lower()} {target}" for target in NAMES if permits(access, name, scope, target)}
        assert got == permitted, name


NAMES = ("digits", "digits-2", "my-digits", "exact", "exact2", "EXACT", "a[1]", "a1", "other", "", "digi")


@pytest.mark.parametrize(
    "header", [None, b"", b"Bearer", b"Bearer ", b"Basic k", b"k", b"\xff", b"Bearer k2", b"bearer"]
)
def test_what_is_no_accepted_key(header: bytes | None) -> None:
    access = access_with(k=entry("k"))
    with pytest.raises(Unauthenticated):
        access.authenticate(header)
    with pytest.raises(Unauthenticated):
        access.authenticate(b"Bearer " + hash_of("k").encode())
    assert access.authenticate(b"bearer  k ").name == "k"


def test_keys_are_replaced_and_rates_go_on() -> None:
    access = access_with(a=entry("a", rate=1.0), b=entry("b"))
    access.authenticate(b"Bearer a").take(0)
    access.replace_keys({"a": entry("a", rate=1.0), "c": entry("c")})
    with pytest.raises(Refused):  # its rate is as before, so its tokens are too
        access.authenticate(b"Bearer a").take(0)
    with pytest.raises(Unauthenticated):
        access.authenticate(b"Bearer b")
    assert access.authenticate(b"Bearer a").name == "a"


def test_a_rate_permits_a_burst_and_then_its_requests_per_second() -> None:
    bucket = TokenBucket(10, burst=3)
    assert [bucket.take(s(5)) for _ in range(4)] == [0, 0, 0, ms(100)]
    assert bucket.take(s(5) + ms(99)) == pytest.approx(ms(1), abs=10)
    assert bucket.take(s(5) + ms(101)) == 0
    taken = sum(bucket.take(s(6) + ms(number)) == 0 for number in range(10_000))
    assert 100 <= taken <= 103
    slow = TokenBucket(0.1)
    assert (slow.take(0), slow.take(0), slow.take(s(4))) == (0, s(10), s(6))


APPLICATION = Application("mine", ("echo",))
MESSAGES: list[tuple[Any, set[str]]] = [
    (Predict(1, "mine", "", 0, ()), {"user"}),
    (Predict(1, "other", "", 0, ()), set()),
    (Predict(1, "", "", 0, (), application="mine"), {"user"}),
    (Predict(1, "mine", "", 0, (), application="other"), {"user"}),  # where the request comes from
    (Predict(1, "other", "", 0, (), application="mine"), set()),
    (Predict(1, "", "", 0, ()), set()),
    (Feedback(1, "mine", ()), {"user"}),
    (Feedback(1, "other", ()), set()),
    (ModelInfo(1, "mine"), {"user", "viewer"}),
    (ModelInfo(1, "", "mine"), {"user", "viewer"}),
    (ModelInfo(1, "mine", "other"), {"viewer"}),
    (ModelInfo(1), {"viewer"}),
    (Describe(1), {"viewer"}),
    (Watch(1, 0), {"viewer"}),
    (PipelineInfo(1, "mine"), {"viewer"}),
    (ApplicationInfo(1), {"viewer"}),
    (ApplicationInfo(1, "mine"), {"viewer"}),
    (Tune(1, "status"), {"viewer"}),
    (Tune(1, "arrivals", b"mine"), {"viewer"}),
    (Tune(1, "apply"), {"manager"}),
    (Tune(1, "withdraw", b"mine"), {"manager"}),
    (Admit(1, "mine", "", True), {"manager"}),
    (Declare(1, APPLICATION), {"manager"}),
    (Withdraw(1, "mine"), {"manager"}),
    (Rollback(1, "mine"), {"manager"}),
]


@pytest.mark.parametrize(("message", "permitted"), MESSAGES)
def test_messages_of_the_sdk(message: Any, permitted: set[str]) -> None:
    access = access_with(
        user=KeyEntry(infer=("mine",)), viewer=KeyEntry(observe=True), manager=KeyEntry(manage=True), none=KeyEntry()
    )
    got = set()
    for key in ("user", "viewer", "manager", "none", "unlisted"):
        try:
            access.check_message(0, key, message)
            got.add(key)
        except Forbidden:
            pass
    assert got == permitted
    access.check_message(0, "", message)  # a client without a key, on loopback


def test_keys_and_the_state_of_their_rates_are_recorded() -> None:
    access: Any = access_with(user=msgspec.structs.replace(entry("user"), infer=("digits*",), rate=1.0))
    access.authenticate(b"Bearer user").take(s(1))
    copy = restore(snapshot(access))
    grant = copy.authenticate(b"Bearer user")
    assert permits(copy, "user", Scope.INFER, "digits-cnn")
    assert not permits(copy, "user", Scope.INFER, "noop")
    with pytest.raises(Refused):
        grant.take(s(1))
    grant.take(s(2))


def test_requests_and_refusals_are_counted_by_the_name_of_the_key() -> None:
    access, stats = access_with(a=entry("a", rate=1.0), b=entry("b"), c=entry("c")), Stats()
    access.authenticate(b"Bearer a").take(0)
    with pytest.raises(Refused):
        access.find_grant("a").take(0)
    access.authenticate(b"Bearer b").take(0)
    access.replace_keys({"a": entry("rotated", rate=2.0), "b": entry("b")})
    access.refresh_counters(stats)
    access.replace_keys({"a": entry("rotated", rate=2.0)})
    access.refresh_counters(stats)
    assert stats.values == {("horologe_key_requests_total", "a"): 2, ("horologe_key_refused_total", "a"): 1}


def test_counters_of_keys_are_bounded() -> None:
    names = [f"k{number}" for number in range(COUNTED_KEYS + 2)]
    access, stats = access_with(**{name: KeyEntry() for name in names}), Stats()
    for name in names:
        access.find_grant(name).take(0)
    access.refresh_counters(stats)
    assert len(stats.values) == 2 * (COUNTED_KEYS + 1)
    assert stats.values["horologe_key_requests_total", "other"] == 2
