"""Which selector gets a query: by context, in turn, or by its inputs."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from frontend.frontend_builders import (
    CLIENT,
    NOW,
    SELECTOR,
    acknowledgement,
    an_observation,
    request_application,
)
from frontend.selector_routing_builders import OTHER, queries, two_selectors
from harness.builders import a_spec, a_tensor, sent, some_bytes
from horologe_common.application_answers import selector_mark
from horologe_common.core.protocol import PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import (
    Acknowledged,
    Cancel,
    Feedback,
    Predict,
)
from horologe_frontend.core.selector_routing import highest_ranked

ADDRESSES = st.lists(st.integers(0, 9), min_size=1, unique=True).map(
    lambda numbers: [f"selector/{number}#{number:x}" for number in numbers]
)


@given(ADDRESSES, st.binary(max_size=8), st.data())
def test_disconnect_moves_only_the_keys_of_that_selector(addresses: list[str], key: bytes, data: Any) -> None:
    removed = data.draw(st.sampled_from(addresses))
    before = highest_ranked(addresses, key)
    after = highest_ranked([address for address in addresses if address != removed], key)
    assert after != removed
    if before != removed:
        assert after == before
    replaced = [f"{removed}0", *[address for address in addresses if address != removed]]
    assert highest_ranked(replaced, key) == (before if before != removed else f"{removed}0")


def test_contexts_are_distributed_evenly() -> None:
    addresses = [f"selector/{number}#1" for number in range(4)]
    counts = Counter(highest_ranked(addresses, f"digits\0user-{number}".encode()) for number in range(4000))
    assert all(900 < count < 1100 for count in counts.values()), counts


def test_context_stays_with_its_selector() -> None:
    frontend = two_selectors()
    asked: dict[str, set[str]] = {}
    for number in range(60):
        context = f"user-{number % 20}"
        predict = Predict(number, "", "", 0, (a_tensor(),), application="bare", context=context)
        frontend.handle(NOW, CLIENT, predict, [some_bytes()])
        ((to, _),) = queries(frontend)
        asked.setdefault(context, set()).add(to)
    assert all(len(selectors) == 1 for selectors in asked.values())
    assert set().union(*asked.values()) == {SELECTOR, OTHER}


def test_models_are_routed_in_turn_and_cached_models_by_inputs() -> None:
    frontend = two_selectors(specs=(a_spec("one"), a_spec("kept", cache=True)))
    for number in range(8):
        frontend.handle(NOW, CLIENT, Predict(number, "one", "", 0, (a_tensor(),)), [some_bytes()])
    assert Counter(to for to, _ in queries(frontend)) == {SELECTOR: 4, OTHER: 4}
    for number in range(8, 28):
        rows = 1 + number % 10
        frontend.handle(NOW, CLIENT, Predict(number, "kept", "", 0, (a_tensor(rows),)), [some_bytes(rows)])
    asked = queries(frontend)
    assert len({to for to, _ in asked}) == 2
    assert len({(to, query.input_hash) for to, query in asked}) == len({query.input_hash for _, query in asked})


def test_feedback_is_routed_to_the_predicting_selector_else_by_context() -> None:
    frontend = two_selectors()
    named = {selector_mark(address) + b"n" * 8 + bytes(32): address for address in (SELECTOR, OTHER)}
    unknown = [an_observation(1, context=f"user-{number}", prediction=b"?" * 44) for number in range(10)]
    frontend.handle(
        NOW, CLIENT, Feedback(9, "bare", (*[an_observation(1, prediction=name) for name in named], *unknown)), ()
    )
    passed = {out.to: out.message for out in frontend.out if isinstance(out.message, Feedback)}
    for name, address in named.items():
        assert passed[address].items[0].prediction == name
    assert sum(len(message.items) for message in passed.values()) == 12
    for number in range(10):
        request_application(frontend, "bare", context=f"user-{number}")
        frontend.handle(NOW, CLIENT, Cancel((7,)), ())
    for to, query in queries(frontend):
        assert query.context in [observation.context for observation in passed[to].items]
    frontend.out.clear()
    frontend.handle(NOW, OTHER, PeerDisconnected(OTHER), ())
    frontend.handle(NOW, SELECTOR, Acknowledged(passed[SELECTOR].id, (0,) * len(passed[SELECTOR].items)), ())
    statuses, reason = acknowledgement(frontend)
    assert Counter(statuses) == {
        Status.OK: len(passed[SELECTOR].items),
        Status.LOST: len(passed[OTHER].items),
    }
    assert statuses[:2] == [Status.OK, Status.LOST]
    assert reason == "the selector disconnected"
    frontend.handle(NOW, CLIENT, Feedback(9, "bare", tuple(an_observation(1, prediction=name) for name in named)), ())
    (resent,) = sent(frontend, Feedback, SELECTOR)
    assert len(resent.items) == 2
    frontend.check()
