"""Several selectors behind one frontend: which of them gets a query, and what a disconnect moves."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.frontend_builders import (
    BARE,
    CLIENT,
    NOW,
    OTHER,
    SAFE,
    SELECTOR,
    acknowledgement,
    an_observation,
    announce,
    connect,
    connected_frontend,
    request_application,
    send_feedback,
    two_selectors,
)
from harness.builders import a_spec, a_tensor, sent, some_bytes
from horologe_common.application_answers import selector_mark
from horologe_common.clock import ms, s
from horologe_common.core.protocol import PeerConnected, PeerDisconnected
from horologe_common.pipelines import PIPELINE_RUNTIME
from horologe_common.status import Status
from horologe_common.wire import (
    Acknowledged,
    Answer,
    ApplicationInfo,
    Applications,
    ApplicationState,
    Cancel,
    Drain,
    Feedback,
    Models,
    ModelState,
    PipelineInfo,
    PipelineState,
    Predict,
    Query,
    Release,
    StreamLimits,
)
from horologe_frontend.core.frontend import Frontend
from horologe_frontend.core.selector_routing import highest_ranked

BYTES = some_bytes()


def queries(frontend: Frontend) -> list[tuple[str, Query]]:
    """Return and clear the queries that were sent, with their selectors."""
    sent_queries = [(out.to, out.message) for out in frontend.out if isinstance(out.message, Query)]
    sent(frontend, Query)
    return sent_queries


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


def test_streams_are_routed_in_turn_and_cached_models_by_inputs() -> None:
    frontend = two_selectors(specs=(a_spec("one", streams=True), a_spec("kept", cache=True)))
    for number in range(8):
        predict = Predict(number, "one", "", 0, (a_tensor(),), stream=StreamLimits())
        frontend.handle(NOW, CLIENT, predict, [some_bytes()])
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


PIPELINE = msgspec.structs.replace(a_spec("p"), runtime=PIPELINE_RUNTIME)
SUCCESSOR = "selector/0#2"


def announce_pipeline(frontend: Frontend, selector: str, state: str = "READY", now_ns: int = NOW) -> None:
    frontend.handle(now_ns, selector, Models(0, (ModelState(PIPELINE, state, ""),)), ())


def request_pipeline(frontend: Frontend, number: int = 1) -> list[str]:
    """Send a request for the pipeline. Return the selectors that get queries."""
    frontend.handle(NOW, CLIENT, Predict(number, "p", "", ms(50), (a_tensor(),)), [BYTES])
    return [to for to, _ in queries(frontend)]


def restart_selector(frontend: Frontend) -> None:
    frontend.handle(NOW, SELECTOR, PeerDisconnected(SELECTOR), ())
    frontend.handle(NOW, SUCCESSOR, PeerConnected(SUCCESSOR), ())


@pytest.mark.parametrize("state", ["READY", "LOADING"])
def test_queries_for_a_pipeline_wait_until_a_new_selector_has_announced_it(state: str) -> None:
    frontend = connected_frontend()
    announce_pipeline(frontend, SELECTOR)
    assert request_pipeline(frontend, 1) == [SELECTOR]
    restart_selector(frontend)
    assert request_pipeline(frontend, 2) == []
    announce_pipeline(frontend, SUCCESSOR, state, NOW + ms(5))
    resent = queries(frontend)
    assert [(to, query.budget_ns) for to, query in resent] == [(SUCCESSOR, ms(45))] * 2
    announce_pipeline(frontend, SUCCESSOR)
    assert queries(frontend) == [], "each is sent once"
    for _, query in resent:
        frontend.handle(NOW, SUCCESSOR, Answer(query.id, 0), ())
    assert [answer.status for answer in sent(frontend, Answer, CLIENT)] == [Status.OK] * 2
    frontend.check()


def test_queries_for_a_pipeline_that_no_selector_announces_are_refused_at_their_deadline() -> None:
    frontend = connected_frontend()
    announce_pipeline(frontend, SELECTOR)
    restart_selector(frontend)
    assert request_pipeline(frontend) == []
    frontend.tick(NOW + s(1))
    (answer,) = sent(frontend, Answer, CLIENT)
    assert (answer.status, answer.reason) == (Status.REFUSED, "not started by the deadline")
    assert len(frontend.staging) == 0


def test_queries_for_a_pipeline_go_to_the_selectors_that_are_ready() -> None:
    frontend = two_selectors()
    announce_pipeline(frontend, SELECTOR)
    assert request_pipeline(frontend, 1) == [SELECTOR]
    announce_pipeline(frontend, OTHER, "LOADING")
    assert request_pipeline(frontend, 2) == [SELECTOR]
    announce_pipeline(frontend, OTHER)
    assert {to for number in (3, 4) for to in request_pipeline(frontend, number)} == {SELECTOR, OTHER}
    frontend.handle(NOW, OTHER, Drain(), ())
    assert {to for number in (5, 6) for to in request_pipeline(frontend, number)} == {SELECTOR}


def test_a_query_for_a_pipeline_that_was_withdrawn_meanwhile_gets_the_answer_of_its_selector() -> None:
    frontend = connected_frontend()
    announce_pipeline(frontend, SELECTOR)
    restart_selector(frontend)
    assert request_pipeline(frontend) == []
    frontend.handle(NOW, SUCCESSOR, Models(0, ()), ())
    assert [to for to, _ in queries(frontend)] == [SUCCESSOR]


def test_a_pipeline_is_described_by_a_selector_that_has_announced_it() -> None:
    frontend = connected_frontend()
    announce_pipeline(frontend, SELECTOR)
    restart_selector(frontend)
    frontend.handle(NOW, CLIENT, PipelineInfo(1, "p"), ())
    assert [reply.status for reply in sent(frontend, PipelineState, CLIENT)] == [Status.LOST]
    announce_pipeline(frontend, SUCCESSOR)
    frontend.handle(NOW, CLIENT, PipelineInfo(2, "p"), ())
    assert len(sent(frontend, PipelineInfo, SUCCESSOR)) == 1


def test_new_selector_gets_queries_after_its_announcement() -> None:
    frontend = connected_frontend()
    first = request_application(frontend)
    frontend.handle(NOW, SELECTOR, PeerDisconnected(SELECTOR), ())
    frontend.handle(NOW, "selector/0#2", PeerConnected("selector/0#2"), ())
    assert not sent(frontend, Query)
    assert send_feedback(frontend, an_observation()) is None
    assert acknowledgement(frontend)[0] == [Status.REFUSED]
    frontend.handle(NOW + ms(5), "selector/0#2", Applications(0, (ApplicationState(SAFE, 1),)), ())
    (resent,) = sent(frontend, Query, "selector/0#2")
    assert (resent.id, resent.budget_ns) == (first.id, ms(33))
    frontend.check()


def test_release_of_a_previous_selector_is_ignored() -> None:
    frontend = connected_frontend()
    assert request_application(frontend, "bare")
    assert request_application(frontend, "bare", now_ns=NOW + 1) is None, "the same id of the same client"
    connect(frontend, OTHER, BARE)
    frontend.handle(NOW, SELECTOR, PeerDisconnected(SELECTOR), ())
    (resent,) = sent(frontend, Query, OTHER)
    frontend.handle(NOW, SELECTOR, Release((resent.id,)), ())
    assert resent.id in frontend.staging
    frontend.handle(NOW, OTHER, Answer(resent.id, 0, inputs_retained=True), ())
    frontend.handle(NOW, SELECTOR, Release((resent.id,)), ())
    assert resent.id in frontend.staging
    frontend.handle(NOW, OTHER, Release((resent.id,)), ())
    assert len(frontend.staging) == 0
    frontend.check()


def test_queries_of_a_disconnected_selector_are_sent_to_the_other() -> None:
    frontend = two_selectors()
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


def test_new_selector_gets_no_query_that_another_has() -> None:
    frontend = connected_frontend()
    assert request_application(frontend, "bare")
    connect(frontend, OTHER)
    assert not queries(frontend)
    frontend.handle(NOW, OTHER, PeerDisconnected(OTHER), ())
    assert not queries(frontend)


def test_application_of_a_disconnected_selector_waits_for_another_announcement() -> None:
    frontend = connected_frontend(SAFE)
    connect(frontend, OTHER)
    assert request_application(frontend)
    frontend.handle(NOW, SELECTOR, PeerDisconnected(SELECTOR), ())
    assert not queries(frontend)
    announce(frontend, SAFE, selector=OTHER)
    ((to, _),) = queries(frontend)
    assert to == OTHER
    frontend.check()


def test_announcement_after_the_disconnect_is_ignored() -> None:
    """Check a message that is read after the disconnect was noticed: no later message would correct it."""
    frontend = two_selectors()
    frontend.handle(NOW, OTHER, PeerDisconnected(OTHER), ())
    announce(frontend, SAFE, BARE, selector=OTHER, revision=2)
    assert frontend.declared.serving_selectors("digits") == (SELECTOR,)
    assert request_application(frontend)
    frontend.check()


def test_latest_declaration_counts_and_is_served_by_the_selectors_that_announced_it() -> None:
    frontend = two_selectors()
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


def test_failures_of_a_declared_application_are_counted_from_zero() -> None:
    values = connected_frontend().stats.values
    assert values["horologe_application_requests_total", "digits", "LOST"] == 0
    assert values["horologe_application_requests_total", "", "UNKNOWN_MODEL"] == 0


def test_application_is_withdrawn_when_no_selector_announces_it() -> None:
    frontend = two_selectors()
    announce(frontend, SAFE, selector=OTHER)
    assert frontend.declared.serving_selectors("bare") == (SELECTOR,)
    announce(frontend, SAFE)
    assert "bare" not in frontend.declared
