"""Traces: which requests are traced, their spans at frontend and controller, and the export to a collector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from controller.controller_builders import WORKER, a_new_controller, finish, register, tick
from frontend.frontend_builders import CLIENT, NOW, SELECTOR, connected_frontend
from harness.builders import a_predict, a_report, sent, some_bytes
from horologe_common.clock import ms, s
from horologe_common.core.instruments import Exemplar
from horologe_common.core.tracing import TRACER, Span, TraceContext, parse_traceparent
from horologe_common.status import Status
from horologe_common.wire import Answer, Infer, Load, Query, Result, Submit
from horologe_frontend.core.request_tracer import RateLimit, derive_context
from selector.selector_harness import FRONTEND, SelectorHarness

if TYPE_CHECKING:
    from horologe_controller.core.controller import Controller
    from horologe_frontend.core.frontend import Frontend

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


@pytest.mark.parametrize(
    "text",
    ["", "00", TRACEPARENT[:-1] + "0", TRACEPARENT.upper(), "01" + TRACEPARENT[2:], TRACEPARENT + "-x",
     TRACEPARENT.replace(TRACE, "0" * 32), TRACEPARENT.replace(PARENT, "0" * 16)],
)  # fmt: skip
def test_invalid_contexts_and_those_of_senders_that_do_not_trace_are_ignored(text: str) -> None:
    assert parse_traceparent(text) is None


def test_a_context_is_read_and_written() -> None:
    context = parse_traceparent(TRACEPARENT)
    assert context == TraceContext(TRACE, PARENT)
    assert context.traceparent == TRACEPARENT
    assert parse_traceparent(derive_context("frontend/0#1", 1).traceparent) == derive_context("frontend/0#1", 1)
    assert derive_context("frontend/0#1", 1) != derive_context("frontend/0#1", 2)


@pytest.mark.parametrize("per_second", [0.0, 0.5, 10.0])
def test_the_number_of_traced_requests_is_bounded(per_second: float) -> None:
    limit, seconds = RateLimit(per_second), 20
    permitted = [limit.permit(s(1000) + ms(at)) for at in range(seconds * 1000)]
    assert sum(permitted) <= per_second * (seconds + 1) + 1
    assert sum(permitted) >= per_second * seconds


def traced_frontend(per_second: float = 100.0, own_per_second: float = 0.0) -> Frontend:
    frontend = connected_frontend()
    frontend.start_tracing(per_second, own_per_second)
    return frontend


def send_predict(frontend: Frontend, number: int = 1, **fields: Any) -> Query:
    frontend.handle(NOW, CLIENT, a_predict(number, "one", **fields), [some_bytes()])
    (query,) = sent(frontend, Query)
    return query


def spans(core: Any) -> list[Span]:
    """Return the spans that the core has sent since the last call."""
    return sent(core, Span, TRACER)


def test_a_request_that_its_sender_traces_has_a_span_of_the_same_trace() -> None:
    frontend = traced_frontend()
    query = send_predict(frontend, traceparent=TRACEPARENT)
    context = parse_traceparent(query.traceparent)
    assert context is not None
    assert context.trace_id == TRACE
    assert context.span_id != PARENT
    frontend.handle(NOW + ms(7), SELECTOR, Answer(query.id, Status.REFUSED, reason="no room"), ())
    (span,) = spans(frontend)
    assert (span.name, span.trace_id, span.span_id, span.parent_id) == ("predict", TRACE, context.span_id, PARENT)
    assert (span.begin_ns, span.end_ns, span.error) == (NOW, NOW + ms(7), "REFUSED: no room")
    assert span.attributes["horologe.slack_ms"] == 93.0


def exemplars_of(frontend: Frontend, name: str, *labels: str) -> list[Exemplar]:
    frontend.refresh_stats()
    return list(frontend.stats.histograms[name, *labels].exemplars.values())


def test_latency_and_slack_of_a_traced_request_link_to_its_trace() -> None:
    frontend = traced_frontend()
    for number, traceparent in ((1, ""), (2, TRACEPARENT), (3, "")):
        query = send_predict(frontend, number, traceparent=traceparent)
        frontend.handle(NOW + ms(7 * number), SELECTOR, Answer(query.id, 0), ())
    at_ns = NOW + ms(14)
    assert exemplars_of(frontend, "horologe_request_seconds", "one", "1") == [Exemplar(TRACE, ms(14), at_ns)]
    assert exemplars_of(frontend, "horologe_slack_seconds", "one", "1") == [Exemplar(TRACE, ms(86), at_ns)]


def test_a_failed_request_has_an_exemplar_of_its_latency_only() -> None:
    frontend = traced_frontend()
    for number, status in ((1, Status.OK), (2, Status.REFUSED)):
        query = send_predict(frontend, number, traceparent=TRACEPARENT if status else "")
        frontend.handle(NOW + ms(7), SELECTOR, Answer(query.id, status), ())
    assert exemplars_of(frontend, "horologe_request_seconds", "one", "1") == [Exemplar(TRACE, ms(7), NOW + ms(7))]
    assert exemplars_of(frontend, "horologe_slack_seconds", "one", "1") == []


def test_other_requests_are_traced_as_samples() -> None:
    frontend = traced_frontend(own_per_second=1.0)
    queries = [send_predict(frontend, number) for number in range(1, 4)]
    assert [bool(query.traceparent) for query in queries] == [True, False, False]
    for query in queries:
        frontend.handle(NOW, SELECTOR, Answer(query.id, 0), ())
    (span,) = spans(frontend)
    assert (span.parent_id, span.error) == ("", "")


def test_senders_cannot_exceed_the_limit() -> None:
    frontend = traced_frontend(per_second=2.0)
    queries = [send_predict(frontend, number, traceparent=TRACEPARENT) for number in range(1, 6)]
    assert sum(bool(query.traceparent) for query in queries) == 2


def test_without_an_endpoint_no_request_is_traced() -> None:
    frontend = connected_frontend()
    query = send_predict(frontend, traceparent=TRACEPARENT)
    frontend.handle(NOW, SELECTOR, Answer(query.id, 0), ())
    assert not query.traceparent
    assert not spans(frontend)


def test_the_selector_passes_the_context_on() -> None:
    harness = SelectorHarness()
    harness.send(FRONTEND, Query(1, "a/1", ms(100), 1, traceparent=TRACEPARENT))
    assert [submit.traceparent for submit in sent(harness.selector, Submit)] == [TRACEPARENT]


def traced_controller() -> tuple[Controller, Load]:
    """Return a controller whose worker has got a LOAD."""
    controller = a_new_controller(scheduler="edf", preload=True)
    controller.start_tracing(1.0, 1.0)
    register(controller, a_report(), pages=64)
    (load,) = sent(controller, Load)
    return controller, load


def submit_two(controller: Controller, now_ns: int) -> None:
    """Submit a traced and another request."""
    for number, traceparent in ((1, TRACEPARENT), (2, "")):
        message = Submit(number, "sum/1", ms(100), 1, FRONTEND, number, traceparent=traceparent)
        controller.handle(now_ns, SELECTOR, message, ())
    tick(controller, now_ns)


def test_the_controller_sends_spans_of_queue_and_lanes_with_the_predictions() -> None:
    controller, load = traced_controller()
    finish(controller, load, ms(5))
    submit_two(controller, ms(10))
    (infer,) = sent(controller, Infer)
    result = Result(infer.action_id, Status.OK, ms(14), ms(16), ms(2), ms(13), (), "", (ms(14), ms(17)))
    controller.handle(ms(18), WORKER, result, ())
    recorded = {span.name: span for span in spans(controller)}
    assert list(recorded) == ["queue", "INPUT", "EXEC", "OUTPUT"]
    assert {(span.trace_id, span.parent_id) for span in recorded.values()} == {(TRACE, PARENT)}
    times = {name: (span.begin_ns // ms(1), span.end_ns // ms(1)) for name, span in recorded.items()}
    assert times == {"queue": (10, 10), "INPUT": (10, 14), "EXEC": (14, 16), "OUTPUT": (16, 17)}
    assert recorded["EXEC"].attributes["horologe.predicted_ms"] == infer.expected_ns / 1e6


def test_the_load_that_a_request_waited_for_is_part_of_its_trace() -> None:
    controller, load = traced_controller()
    submit_two(controller, ms(1))
    controller.handle(ms(5), WORKER, Result(load.action_id, Status.OK, ms(4), ms(5)), ())
    tick(controller, ms(5))
    (infer,) = sent(controller, Infer)
    controller.handle(ms(8), WORKER, Result(infer.action_id, Status.FAILED, ms(6), ms(8), reason="it raised"), ())
    recorded = {span.name: span for span in spans(controller)}
    assert list(recorded) == ["queue", "LOAD", "EXEC"]
    assert (recorded["LOAD"].begin_ns, recorded["LOAD"].end_ns) == (ms(4), ms(5))
    assert recorded["EXEC"].error == "FAILED: it raised"
