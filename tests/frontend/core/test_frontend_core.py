"""The frontend validates each request first, and gives it exactly one answer."""

from __future__ import annotations

from typing import Any

import pytest

from frontend.frontend_builders import CLIENT, CONTROLLER, SELECTOR, WORKER, a_frontend, send_predict
from harness.builders import a_predict, a_spec, a_state, a_tensor, sent
from horologe_common.applications import NAME_LIMIT
from horologe_common.clock import NEVER_NS, ms
from horologe_common.core.protocol import PeerConnected, PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import Answer, Cancel, Dispatch, Models, Predict, Query, Release, Ship, StreamLimits, Tensor


def test_a_request_is_staged_and_sent_to_the_selector_and_its_answer_has_the_id_of_the_client() -> None:
    frontend = a_frontend()
    send_predict(frontend, a_predict(7, rows=3))
    (query,) = sent(frontend, Query, SELECTOR)
    assert (query.model, query.rows, query.budget_ns, query.best_effort) == ("sum/1", 3, ms(100), False)
    assert query.id in frontend.staging
    frontend.check()
    frontend.handle(ms(10), SELECTOR, Answer(query.id, 0, (a_tensor(width=1, name="y"),)), [b"1234"])
    (answer,) = sent(frontend, Answer, CLIENT)
    assert (answer.id, answer.status) == (7, Status.OK)
    assert len(frontend.staging) == frontend.pending() == 0


@pytest.mark.parametrize(("budget_ms", "slo_ms", "left_ms"), [(50, 0, 30), (0, 90, 70), (10, 0, 0)])
def test_the_time_for_which_a_gateway_has_held_a_request_counts_for_its_deadline(
    budget_ms: int, slo_ms: int, left_ms: int
) -> None:
    frontend = a_frontend(a_spec(cache=True, slo_ns=ms(slo_ms)))
    send_predict(frontend, a_predict(7, budget_ms=budget_ms, waited_ns=ms(20)))
    (query,) = sent(frontend, Query, SELECTOR)
    assert (query.budget_ns, query.best_effort) == (max(1, ms(left_ms)), False)


@pytest.mark.parametrize(
    ("predict", "status", "words"),
    [
        (a_predict(model="nope"), Status.UNKNOWN_MODEL, ["model", "nope"]),
        (Predict(1, "sum", "9", 0, (a_tensor(),)), Status.UNKNOWN_MODEL, ["version", "9"]),
        (Predict(1, "sum", "", 0, (a_tensor(name="z"),)), Status.INVALID_INPUT, ["'z'", "'x'"]),
        (Predict(1, "sum", "", 0, ()), Status.INVALID_INPUT, ["[]", "'x'"]),
        (Predict(1, "sum", "", 0, (a_tensor(width=5),)), Status.INVALID_INPUT, ["[1, 5]", "[-1, 4]"]),
        (Predict(1, "sum", "", 0, (Tensor("x", "INT8", (1, 4), 4),)), Status.INVALID_INPUT, ["INT8", "FP32"]),
        (Predict(1, "sum", "", 0, (a_tensor(rows=17),)), Status.INVALID_INPUT, ["17", "16"]),
        (Predict(1, "sum", "", 0, (a_tensor(rows=0),)), Status.INVALID_INPUT, ["0", "1 to 16"]),
        (a_predict(outputs=("nope",)), Status.INVALID_INPUT, ["nope", "y"]),
        (a_predict(outputs=("y", "y")), Status.INVALID_INPUT, ["outputs", "['y', 'y']", "each once"]),
        (
            a_predict(application="a" * (NAME_LIMIT + 1)),
            Status.INVALID_INPUT,
            ["application: got 129 characters"],
        ),
        (a_predict(budget_ms=-5), Status.INVALID_INPUT, ["budget_ns: got -5000000, wanted at least 0"]),
        (a_predict(waited_ns=-5), Status.INVALID_INPUT, ["waited_ns: got -5, wanted at least 0"]),
    ],
)
def test_invalid_request_is_answered_with_the_value_received_and_wanted(
    predict: Predict, status: Status, words: list[str]
) -> None:
    frontend = a_frontend()
    send_predict(frontend, predict)
    (answer,) = sent(frontend, Answer, CLIENT)
    assert answer.status == status
    assert all(word in answer.reason for word in words), answer.reason
    assert not sent(frontend, Query)
    frontend.check()


def test_request_over_the_size_limit_is_too_large() -> None:
    frontend = a_frontend(max_request_bytes=15)
    send_predict(frontend, a_predict())
    assert sent(frontend, Answer)[0].status == Status.TOO_LARGE


@pytest.mark.parametrize("settings", [{"max_pending": 1}, {"staging_bytes": 20}])
def test_requests_over_the_memory_limits_are_refused(settings: Any) -> None:
    frontend = a_frontend(**settings)
    send_predict(frontend, a_predict(1))
    send_predict(frontend, a_predict(2))
    (answer,) = sent(frontend, Answer)
    assert (answer.id, answer.status) == (2, Status.REFUSED)
    assert answer.retry_after_ns > 0


@pytest.mark.parametrize("died", [None, CONTROLLER, SELECTOR])
def test_request_without_an_answer_ends_after_deadline_and_grace(died: str | None) -> None:
    """No worker had its inputs, so it is refused, and a retry is safe."""
    frontend = a_frontend(grace_ns=ms(20))
    send_predict(frontend, a_predict(7, budget_ms=50))
    if died:
        frontend.handle(ms(1), died, PeerDisconnected(died), ())
    assert frontend.wakeup_ns() == ms(70)
    frontend.tick(ms(70))
    (answer,) = sent(frontend, Answer)
    assert answer.status == Status.REFUSED
    assert ("because no selector" in answer.reason) == (died is not None)
    assert bool(sent(frontend, Cancel, SELECTOR)) == (died != SELECTOR)
    frontend.check()


def test_request_at_a_connected_worker_is_late_not_lost() -> None:
    frontend = a_frontend()
    send_predict(frontend, a_predict(7, budget_ms=50))
    (query,) = sent(frontend, Query)
    frontend.handle(1, CONTROLLER, Dispatch(5, WORKER, (query.id,)), ())
    assert sent(frontend, Ship, WORKER)[0].items[0].input_id == query.id
    frontend.tick(ms(200))
    assert sent(frontend, Answer)[0].status == Status.LATE


@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize("died", [SELECTOR, CONTROLLER])
def test_request_that_may_have_run_for_a_lost_service_is_lost_not_refused(died: str, answered: bool) -> None:
    """REFUSED promises that no worker ran the request."""
    frontend = a_frontend()
    send_predict(frontend, a_predict(7, budget_ms=50))
    (query,) = sent(frontend, Query)
    frontend.handle(1, CONTROLLER, Dispatch(5, WORKER, (query.id,)), ())
    restarted = died.replace("#1", "#2")
    frontend.handle(1, died, PeerDisconnected(died), ())
    frontend.handle(1, restarted, PeerConnected(restarted), ())
    if answered:
        selector = restarted if died == SELECTOR else SELECTOR
        frontend.handle(2, selector, Answer(query.id, Status.REFUSED, (), "no room"), ())
    frontend.tick(ms(200))
    (answer,) = sent(frontend, Answer, CLIENT)
    assert answer.status == (Status.LATE if died == CONTROLLER and not answered else Status.LOST)


def test_failures_of_a_model_are_counted_from_zero() -> None:
    values = a_frontend().stats.values
    failures = {key[1:]: value for key, value in values.items() if key[0] == "nv_inference_request_failure"}
    statuses = {"INVALID_INPUT", "UNKNOWN_MODEL", "TOO_LARGE", "REFUSED", "LATE", "LOST", "CANCELLED", "FAILED"}
    assert {key[2] for key in failures if key[:2] == ("sum", "1")} == statuses
    assert {key[2] for key in failures if key[:2] == ("", "")} == statuses
    assert not any(failures.values())


def test_late_answer_within_the_grace_has_its_outputs() -> None:
    frontend = a_frontend()
    send_predict(frontend, a_predict(7, budget_ms=50))
    (query,) = sent(frontend, Query)
    frontend.handle(ms(60), SELECTOR, Answer(query.id, 0, (a_tensor(width=1),)), [b"1234"])
    (answer,) = sent(frontend, Answer)
    assert answer.status == Status.LATE
    assert answer.outputs


@pytest.mark.parametrize(("slo_ns", "best_effort"), [(ms(30), False), (0, True)])
def test_the_default_deadline_is_the_slo_of_the_model_or_best_effort(slo_ns: int, best_effort: bool) -> None:
    frontend = a_frontend(a_spec(slo_ns=slo_ns, cache=True))
    send_predict(frontend, a_predict(budget_ms=0))
    (query,) = sent(frontend, Query)
    assert (query.budget_ns, query.best_effort) == (slo_ns or frontend.settings.best_effort_ns, best_effort)


@pytest.mark.parametrize(("first_ns", "gap_ns"), [(-1, 0), (1, -1), (2**64 - 1, 2**63)])
def test_times_of_a_stream_are_checked(first_ns: int, gap_ns: int) -> None:
    frontend = a_frontend()
    frontend.handle(0, CONTROLLER, Models(0, (a_state(a_spec("sum", streams=True)),)), ())
    send_predict(frontend, a_predict(7, stream=StreamLimits(first_ns, gap_ns)))
    if min(first_ns, gap_ns) < 0:
        (answer,) = sent(frontend, Answer, CLIENT)
        assert answer.status == Status.INVALID_INPUT
        assert answer.reason.startswith(f"stream: got StreamLimits(first_ns={first_ns}")
    else:
        (query,) = sent(frontend, Query, SELECTOR)
        assert query.stream == StreamLimits(NEVER_NS >> 1, NEVER_NS >> 1)


def test_a_stream_that_the_selector_has_cancelled_has_an_end() -> None:
    frontend = a_frontend()
    send_predict(frontend, a_predict(7))
    (query,) = sent(frontend, Query, SELECTOR)
    frontend.handle(0, SELECTOR, Answer(query.id, int(Status.CANCELLED), (), "no item was taken"), ())
    assert [(answer.id, answer.reason) for answer in sent(frontend, Answer, CLIENT)] == [(7, "no item was taken")]


def test_cancel_and_disconnect_finish_a_request_without_an_answer() -> None:
    frontend = a_frontend()
    send_predict(frontend, a_predict(1))
    send_predict(frontend, a_predict(2))
    queries = sent(frontend, Query)
    frontend.handle(1, CLIENT, Cancel((1,)), ())
    frontend.handle(1, CLIENT, PeerDisconnected(CLIENT), ())
    assert frontend.pending() == 0
    assert not sent(frontend, Answer)
    assert [message.ids for message in sent(frontend, Cancel, SELECTOR)] == [(queries[0].id,), (queries[1].id,)]
    frontend.check()
    frontend.handle(2, SELECTOR, Release(tuple(query.id for query in queries)), ())
    assert len(frontend.staging) == 0


def test_new_selector_gets_the_query_with_the_remaining_budget() -> None:
    frontend = a_frontend()
    send_predict(frontend, a_predict(7))
    (first,) = sent(frontend, Query)
    frontend.handle(ms(10), SELECTOR, PeerDisconnected(SELECTOR), ())
    frontend.handle(ms(30), "selector/0#2", PeerConnected("selector/0#2"), ())
    (second_query,) = sent(frontend, Query, "selector/0#2")
    assert second_query.id == first.id
    assert second_query.budget_ns == ms(70)
    frontend.handle(ms(40), SELECTOR, Answer(first.id, 0), ())
    assert not sent(frontend, Answer)


def test_only_requested_outputs_are_returned() -> None:
    frontend = a_frontend()
    send_predict(frontend, a_predict(7, outputs=("y",)))
    (query,) = sent(frontend, Query)
    outputs = (a_tensor(width=1, name="extra"), a_tensor(width=1, name="y"))
    frontend.handle(1, SELECTOR, Answer(query.id, 0, outputs), [b"aaaa", b"bbbb"])
    (out,) = [out for out in frontend.out if isinstance(out.message, Answer)]
    assert [tensor.name for tensor in out.message.outputs] == ["y"]
    assert out.buffers == [b"bbbb"]
