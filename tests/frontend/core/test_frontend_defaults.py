"""Default answers of applications: sent before the deadline, whatever the selector does."""

from __future__ import annotations

import pytest

from frontend.frontend_builders import (
    CLIENT,
    NOW,
    SELECTOR,
    connected_frontend,
    default_outputs,
    request_application,
    the_answer,
)
from harness.builders import a_tensor, sent, some_bytes
from horologe_common.applications import Application
from horologe_common.clock import ms, s
from horologe_common.core.protocol import PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import Answer, Cancel, Predict, Query, Release
from horologe_frontend.core.application_requests import DefaultLead
from horologe_frontend.core.frontend import Frontend


@pytest.mark.parametrize("selector", ["hung", "gone", "never there"])
def test_default_is_sent_in_time_without_an_answer_of_the_selector(selector: str) -> None:
    frontend = connected_frontend()
    if selector == "never there":
        frontend.handle(NOW, SELECTOR, PeerDisconnected(SELECTOR), ())
    query = request_application(frontend, rows=2)
    if selector == "gone":
        frontend.handle(NOW + ms(1), SELECTOR, PeerDisconnected(SELECTOR), ())
    wakeup_ns = frontend.wakeup_ns()
    assert wakeup_ns == NOW + ms(38)
    frontend.tick(wakeup_ns)
    assert default_outputs(frontend) == {"prediction": [7, 7], "confidence": [0.0, 0.0], "defaulted": [True, True]}
    assert bool(sent(frontend, Cancel, SELECTOR)) == (selector == "hung")
    assert (query is None) == (selector == "never there")
    frontend.tick(NOW + s(10))
    assert len(frontend.staging) == 0
    frontend.check()


@pytest.mark.parametrize("status", [Status.REFUSED, Status.LOST, Status.FAILED])
def test_default_replaces_a_failed_answer(status: Status) -> None:
    frontend = connected_frontend()
    query = request_application(frontend)
    frontend.handle(NOW + ms(1), SELECTOR, Answer(query.id, int(status), reason="no worker", inputs_retained=True), ())
    assert default_outputs(frontend)["prediction"] == [7]
    assert query.id in frontend.staging
    frontend.check()


def test_short_deadline_leaves_three_quarters_to_the_selector() -> None:
    frontend = connected_frontend()
    request_application(frontend, budget_ns=ms(4))
    assert frontend.wakeup_ns() == NOW + ms(3)


def test_answer_after_the_default_is_dropped() -> None:
    frontend = connected_frontend()
    query = request_application(frontend)
    frontend.tick(NOW + ms(39))
    assert the_answer(frontend).defaulted
    frontend.handle(NOW + ms(39), SELECTOR, Answer(query.id, 0, inputs_retained=True), ())
    assert not sent(frontend, Answer)
    assert query.id in frontend.staging
    frontend.handle(NOW + ms(39), SELECTOR, Release((query.id,)), ())
    assert len(frontend.staging) == 0
    frontend.check()


def test_default_of_a_regression() -> None:
    frontend = connected_frontend(Application("digits", ("one",), task="regression", default=0.5))
    request_application(frontend)
    frontend.tick(NOW + ms(100))
    assert default_outputs(frontend)["prediction"] == [0.5]


@pytest.mark.parametrize(("selector", "status"), [("hung", Status.LATE), ("gone", Status.LOST)])
def test_request_without_a_default_is_late_or_lost(selector: str, status: Status) -> None:
    frontend = connected_frontend()
    request_application(frontend, "bare")
    assert frontend.wakeup_ns() == NOW + ms(90)
    if selector == "gone":
        frontend.handle(NOW + ms(1), SELECTOR, PeerDisconnected(SELECTOR), ())
    frontend.tick(NOW + ms(90))
    assert the_answer(frontend).status == status


def stall_loop(frontend: Frontend, late_ns: int, count: int = 30) -> int:
    """Tick the frontend `late_ns` after each of `count` timers, with requests in between. Return the time."""
    now_ns = NOW
    for number in range(count):
        frontend.handle(now_ns, CLIENT, Predict(number, "", "", 0, (a_tensor(),), application="digits"), [some_bytes()])
        (query,) = sent(frontend, Query)
        frontend.handle(now_ns, SELECTOR, Answer(query.id, 0), ())
        frontend.tick(now_ns)
        due_ns = frontend.wakeup_ns()
        assert due_ns is not None
        now_ns = due_ns + late_ns
        frontend.tick(now_ns)
        sent(frontend, Answer)
    return now_ns


@pytest.mark.parametrize(
    ("late_ms", "lead_ms"), [(0, 2), (1, 2), (7, 7), (400, 10)], ids=["never", "a little", "often", "far too long"]
)
def test_lead_equals_the_delay_of_the_loop(late_ms: int, lead_ms: int) -> None:
    """Check that the lead is at most a quarter of the budget."""
    frontend = connected_frontend()
    now_ns = stall_loop(frontend, ms(late_ms))
    query = request_application(frontend, now_ns=now_ns)
    assert query.budget_ns == ms(40 - lead_ms)
    frontend.tick(now_ns + ms(40 - lead_ms + min(late_ms, lead_ms)))
    answer = the_answer(frontend)
    assert (answer.status, answer.defaulted) == (Status.OK, True)


@pytest.mark.parametrize(("at_ns", "status"), [(0, Status.OK), (1, Status.LATE)])
def test_default_is_late_only_after_the_deadline(at_ns: int, status: Status) -> None:
    frontend = connected_frontend()
    request_application(frontend)
    frontend.tick(NOW + ms(40) + at_ns)
    answer = the_answer(frontend)
    assert (answer.status, answer.defaulted) == (status, True)


def test_many_short_requests_do_not_hide_a_stall() -> None:
    lead = DefaultLead(ms(2))
    lead.lead_ns(0)
    lead.measure_delay(ms(50) + ms(9))
    for at_ns in range(ms(60), ms(61), 1000):
        lead.lead_ns(at_ns)
        lead.measure_delay(at_ns)
    assert lead.lead_ns(ms(61)) == ms(9)


def test_old_stall_expires_and_the_timer_stops_without_requests() -> None:
    lead = DefaultLead(ms(2))
    lead.lead_ns(0)
    lead.measure_delay(ms(90))
    assert lead.lead_ns(ms(90)) == ms(40)
    while (at_ns := lead.timer_ns) is not None:
        lead.measure_delay(at_ns)
    assert lead.timer_ns is None
    assert lead.lead_ns(s(61)) == ms(2)
