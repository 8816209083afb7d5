"""Several selectors behind one frontend: who is asked, and who when that one has gone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from builders import a_spec, a_tensor, sent, some_bytes
from frontend_builders import BARE, CLIENT, NOW, SAFE, SELECTOR, a_frontend, acknowledged, announce, ask, give, item
from horologe_common.applications import Application
from horologe_common.clock import ms, s
from horologe_common.core.protocol import PeerConnected, PeerDisconnected, instance
from horologe_common.prediction_id import selector_mark
from horologe_common.status import Status
from horologe_common.wire import (
    Acknowledged,
    Answer,
    ApplicationInfo,
    Applications,
    ApplicationState,
    Cancel,
    Feedback,
    Predict,
    Query,
    Release,
)
from horologe_frontend.core.frontend import Frontend
from horologe_frontend.core.selector_routing import highest_ranked

OTHER = "selector/1#1"
BYTES = some_bytes()


def join(frontend: Frontend, address: str, *applications: Application) -> None:
    frontend.handle(NOW, address, PeerConnected(address), ())
    announce(frontend, *applications, selector=address)


def two(**fields: Any) -> Frontend:
    """A frontend with two selectors, that both serve what is declared."""
    frontend = a_frontend(**fields)
    join(frontend, OTHER, SAFE, BARE)
    return frontend


def queries(frontend: Frontend) -> list[tuple[str, Query]]:
    """Who has been asked what; it is taken."""
    found = [(out.to, out.message) for out in frontend.out if isinstance(out.message, Query)]
    sent(frontend, Query)
    return found


def test_a_new_selector_is_asked_when_it_knows_its_applications() -> None:
    frontend = a_frontend()
    first = ask(frontend)
    assert first is not None
    frontend.handle(NOW, SELECTOR, PeerDisconnected(SELECTOR), ())
    frontend.handle(NOW, "selector/0#2", PeerConnected("selector/0#2"), ())
    assert not sent(frontend, Query)
    assert give(frontend, item()) is None
    assert acknowledged(frontend)[0] == [Status.REFUSED]
    frontend.handle(NOW + ms(5), "selector/0#2", Applications(0, (ApplicationState(SAFE, 1),)), ())
    (again,) = sent(frontend, Query, "selector/0#2")
    assert (again.id, again.budget_ns) == (first.id, ms(33))
    frontend.check()


def test_a_selector_that_was_left_for_another_does_not_release_what_that_one_needs() -> None:
    frontend = a_frontend()
    first, second = ask(frontend, "bare"), ask(frontend, "bare", now_ns=NOW + 1)
    assert first is not None
    assert second is None, "the same id of the same client"
    join(frontend, OTHER, BARE)
    frontend.handle(NOW, SELECTOR, PeerDisconnected(SELECTOR), ())
    (again,) = sent(frontend, Query, OTHER)
    frontend.handle(NOW, SELECTOR, Release((again.id,)), ())
    assert again.id in frontend.staging
    frontend.handle(NOW, OTHER, Answer(again.id, 0, inputs_retained=True), ())
    frontend.handle(NOW, SELECTOR, Release((again.id,)), ())
    assert again.id in frontend.staging
    frontend.handle(NOW, OTHER, Release((again.id,)), ())
    assert len(frontend.staging) == 0
    frontend.check()


# which of them


ADDRESSES = st.lists(st.integers(0, 9), min_size=1, unique=True).map(
    lambda numbers: [f"selector/{number}#{number:x}" for number in numbers]
)


@given(ADDRESSES, st.binary(max_size=8), st.data())
def test_only_what_one_had_moves_when_it_goes_and_comes_back(addresses: list[str], key: bytes, data: Any) -> None:
    gone = data.draw(st.sampled_from(addresses))
    before = highest_ranked(addresses, key)
    after = highest_ranked([one for one in addresses if one != gone], key)
    assert after != gone
    if before != gone:
        assert after == before
    reborn = [f"{gone}0", *[one for one in addresses if one != gone]]
    assert highest_ranked(reborn, key) == (before if before != gone else f"{gone}0")


def test_contexts_are_shared_out_fairly() -> None:
    addresses = [f"selector/{number}#1" for number in range(4)]
    counts = Counter(highest_ranked(addresses, f"digits\0user-{number}".encode()) for number in range(4000))
    assert all(900 < count < 1100 for count in counts.values()), counts


def test_a_context_stays_with_one_selector_while_it_is_there() -> None:
    frontend = two()
    asked: dict[str, set[str]] = {}
    for number in range(60):
        context = f"user-{number % 20}"
        predict = Predict(number, "", "", 0, (a_tensor(),), application="bare", context=context)
        frontend.handle(NOW, CLIENT, predict, [some_bytes()])
        ((to, _),) = queries(frontend)
        asked.setdefault(context, set()).add(to)
    assert all(len(who) == 1 for who in asked.values())
    assert set().union(*asked.values()) == {SELECTOR, OTHER}


def test_models_go_to_both_and_the_same_inputs_of_a_cached_one_to_the_same() -> None:
    frontend = two(specs=(a_spec("one"), a_spec("kept", cache=True)))
    for number in range(8):
        frontend.handle(NOW, CLIENT, Predict(number, "one", "", 0, (a_tensor(),)), [some_bytes()])
    assert Counter(to for to, _ in queries(frontend)) == {SELECTOR: 4, OTHER: 4}
    for number in range(8, 28):
        rows = 1 + number % 10
        frontend.handle(NOW, CLIENT, Predict(number, "kept", "", 0, (a_tensor(rows),)), [some_bytes(rows)])
    asked = queries(frontend)
    assert len({to for to, _ in asked}) == 2
    assert len({(to, query.input_hash) for to, query in asked}) == len({query.input_hash for _, query in asked})


# one goes


def test_what_the_one_that_went_was_asked_is_asked_of_the_other_and_nothing_else_is() -> None:
    frontend = two()
    for number in range(20):
        name: dict[str, Any] = {"application": "bare", "context": f"user-{number}"} if number % 2 else {}
        frontend.handle(NOW, CLIENT, Predict(number, "" if name else "one", "", ms(50), (a_tensor(),), **name), [BYTES])
    before = queries(frontend)
    frontend.handle(NOW + ms(10), SELECTOR, PeerDisconnected(SELECTOR), ())
    again = queries(frontend)
    assert {to for to, _ in again} == {OTHER}
    assert [query.id for _, query in again] == [query.id for to, query in before if to == SELECTOR]
    assert {query.budget_ns for _, query in again} == {ms(40)}
    for _, query in before:
        frontend.handle(NOW + ms(11), SELECTOR, Answer(query.id, 0), ())
    assert not sent(frontend, Answer)
    for _, query in before:
        frontend.handle(NOW + ms(12), OTHER, Answer(query.id, 0), ())
    assert sorted(answer.id for answer in sent(frontend, Answer, CLIENT)) == list(range(20))
    assert len(frontend.staging) == 0
    frontend.check()


def test_one_that_joins_is_asked_nothing_that_another_works_on() -> None:
    frontend = a_frontend()
    assert ask(frontend, "bare")
    join(frontend, OTHER)
    assert not queries(frontend)
    frontend.handle(NOW, OTHER, PeerDisconnected(OTHER), ())
    assert not queries(frontend)


def test_an_application_that_only_the_one_that_went_knew_waits_for_the_other_to_hear_of_it() -> None:
    frontend = a_frontend(SAFE)
    join(frontend, OTHER)
    assert ask(frontend)
    frontend.handle(NOW, SELECTOR, PeerDisconnected(SELECTOR), ())
    assert not queries(frontend)
    announce(frontend, SAFE, selector=OTHER)
    ((to, _),) = queries(frontend)
    assert to == OTHER
    frontend.check()


def test_what_one_that_has_gone_said_last_is_too_late() -> None:
    """A socket may be read after its end was noticed; nobody would ever take that back."""
    frontend = two()
    frontend.handle(NOW, OTHER, PeerDisconnected(OTHER), ())
    announce(frontend, SAFE, BARE, selector=OTHER, revision=2)
    assert frontend.declared.serving_selectors("digits") == (SELECTOR,)
    assert ask(frontend)
    frontend.check()


# declarations


def test_of_two_declarations_the_later_one_counts_and_is_served_by_those_who_know_it() -> None:
    frontend = two()
    later = msgspec.structs.replace(BARE, slo_ms=70)
    announce(frontend, later, selector=OTHER, revision=2)
    for number in range(10):
        predict = Predict(number, "", "", 0, (a_tensor(),), application="bare", context=f"user-{number}")
        frontend.handle(NOW, CLIENT, predict, [BYTES])
        frontend.handle(NOW, CLIENT, ApplicationInfo(number, "bare", f"user-{number}"), ())
    assert {(to, query.budget_ns) for to, query in queries(frontend)} == {(OTHER, ms(70))}
    assert len(sent(frontend, ApplicationInfo, OTHER)) == 10
    announce(frontend, later, selector=SELECTOR, revision=2)
    assert frontend.declared.serving_selectors("bare") == (SELECTOR, OTHER)


def test_what_is_withdrawn_is_gone_when_both_have_heard_of_it() -> None:
    frontend = two()
    announce(frontend, SAFE, selector=OTHER)
    assert frontend.declared.serving_selectors("bare") == (SELECTOR,)
    announce(frontend, SAFE)
    assert "bare" not in frontend.declared


# feedback


def test_feedback_goes_to_the_one_that_has_predicted_and_else_where_its_context_is() -> None:
    frontend = two()
    named = {selector_mark(who) + b"n" * 8 + bytes(32): who for who in (SELECTOR, OTHER)}
    unknown = [item(1, context=f"user-{number}", prediction=b"?" * 44) for number in range(10)]
    frontend.handle(NOW, CLIENT, Feedback(9, "bare", (*[item(1, prediction=name) for name in named], *unknown)), ())
    passed = {out.to: out.message for out in frontend.out if isinstance(out.message, Feedback)}
    for name, who in named.items():
        assert passed[who].items[0].prediction == name
    assert sum(len(message.items) for message in passed.values()) == 12
    for number in range(10):
        ask(frontend, "bare", context=f"user-{number}")
        frontend.handle(NOW, CLIENT, Cancel((7,)), ())
    for to, query in queries(frontend):
        assert query.context in [one.context for one in passed[to].items]
    frontend.out.clear()
    frontend.handle(NOW, OTHER, PeerDisconnected(OTHER), ())
    frontend.handle(NOW, SELECTOR, Acknowledged(passed[SELECTOR].id, (0,) * len(passed[SELECTOR].items)), ())
    statuses, reason = acknowledged(frontend)
    assert Counter(statuses) == {
        Status.OK: len(passed[SELECTOR].items),
        Status.LOST: len(passed[OTHER].items),
    }
    assert statuses[:2] == [Status.OK, Status.LOST]
    assert reason == "the selector disconnected"
    frontend.handle(NOW, CLIENT, Feedback(9, "bare", tuple(item(1, prediction=name) for name in named)), ())
    (again,) = sent(frontend, Feedback, SELECTOR)
    assert len(again.items) == 2
    frontend.check()


# all of it


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "model", "give", "answer", "acknowledge", "gone", "joined", "wait"]),
        st.integers(0, 3),
    )
)


@given(STEPS)
def test_everything_has_one_end_whoever_comes_and_goes(steps: list[tuple[str, int]]) -> None:
    frontend, now_ns, births = two(), NOW, 1
    there = [SELECTOR, OTHER]
    asked = given_ = 0
    open_: list[tuple[str, Any]] = []
    for number, (step, pick) in enumerate([*steps, ("wait", 0), ("wait", 0)]):
        match step:
            case "ask" | "model":
                fields: dict[str, Any] = {"application": "bare", "context": str(pick)} if step == "ask" else {}
                predict = Predict(number, "" if fields else "one", "", 0, (a_tensor(),), **fields)
                frontend.handle(now_ns, CLIENT, predict, [BYTES])
                asked += 1
            case "give":
                items = tuple(item(1, context=str(context), inputs=(a_tensor(),)) for context in range(pick + 1))
                frontend.handle(now_ns, CLIENT, Feedback(number, "bare", items), [BYTES] * (pick + 1))
                given_ += 1
            case "answer" | "acknowledge":
                for to, message in open_[-3:]:
                    if to in there and isinstance(message, Query):
                        frontend.handle(now_ns, to, Answer(message.id, 0, inputs_retained=step == "acknowledge"), ())
                    elif to in there:
                        frontend.handle(now_ns, to, Acknowledged(message.id, (0,) * len(message.items)), ())
            case "gone" if there:
                frontend.handle(now_ns, "", PeerDisconnected(there.pop(pick % len(there))), ())
            case "joined" if len(there) < 2:
                births += 1
                free = "1" if any(instance(one) == "selector/0" for one in there) else "0"
                there.append(f"selector/{free}#{births}")
                join(frontend, there[-1], BARE)
            case "wait":
                now_ns += s(31)
        frontend.tick(now_ns)
        frontend.check()
        new = [(out.to, out.message) for out in frontend.out if isinstance(out.message, Query | Feedback)]
        assert all(to in there for to, _ in new)
        open_ += new
        frontend.out = [out for out in frontend.out if not isinstance(out.message, Query | Feedback)]
    assert len(sent(frontend, Answer, CLIENT)) == asked
    assert len(sent(frontend, Acknowledged, CLIENT)) == given_
    assert len(frontend.staging) == 0
