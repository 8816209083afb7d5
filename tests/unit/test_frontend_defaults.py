"""Defaults of applications: answered before the deadline, whatever there is behind the frontend."""

from __future__ import annotations

import numpy as np
import pytest

from builders import a_tensor, sent, some_bytes
from frontend_builders import CLIENT, NOW, SELECTOR, a_frontend, ask, defaulted, the_answer
from horologe_common.applications import Application
from horologe_common.clock import ms, s
from horologe_common.core.protocol import PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import Answer, Cancel, Predict, Query, Release
from horologe_frontend.core.default_lead import DefaultLead
from horologe_frontend.core.frontend import Frontend


@pytest.mark.parametrize("selector", ["hung", "gone", "never there"])
def test_a_selector_that_does_not_answer_means_the_default_in_time(selector: str) -> None:
    frontend = a_frontend()
    if selector == "never there":
        frontend.handle(NOW, SELECTOR, PeerDisconnected(SELECTOR), ())
    query = ask(frontend, rows=2)
    if selector == "gone":
        frontend.handle(NOW + ms(1), SELECTOR, PeerDisconnected(SELECTOR), ())
    wakeup_ns = frontend.wakeup_ns()
    assert wakeup_ns == NOW + ms(38)
    frontend.tick(wakeup_ns)
    assert defaulted(frontend) == {"prediction": [7, 7], "confidence": [0.0, 0.0], "defaulted": [True, True]}
    assert bool(sent(frontend, Cancel, SELECTOR)) == (selector == "hung")
    assert (query is None) == (selector == "never there")
    frontend.tick(NOW + s(10))
    assert len(frontend.staging) == 0
    frontend.check()


@pytest.mark.parametrize("status", [Status.REFUSED, Status.LOST, Status.FAILED])
def test_the_default_is_better_than_a_refusal(status: Status) -> None:
    frontend = a_frontend()
    query = ask(frontend)
    assert query is not None
    frontend.handle(NOW + ms(1), SELECTOR, Answer(query.id, int(status), reason="no worker", inputs_retained=True), ())
    assert defaulted(frontend)["prediction"] == [7]
    assert query.id in frontend.staging
    frontend.check()


def test_a_brief_deadline_leaves_the_selector_most_of_it() -> None:
    frontend = a_frontend()
    ask(frontend, budget_ns=ms(4))
    assert frontend.wakeup_ns() == NOW + ms(3)


def test_an_answer_after_the_default_is_dropped() -> None:
    frontend = a_frontend()
    query = ask(frontend)
    assert query is not None
    frontend.tick(NOW + ms(39))
    assert the_answer(frontend).defaulted
    frontend.handle(NOW + ms(39), SELECTOR, Answer(query.id, 0, inputs_retained=True), ())
    assert not sent(frontend, Answer)
    assert query.id in frontend.staging
    frontend.handle(NOW + ms(39), SELECTOR, Release((query.id,)), ())
    assert len(frontend.staging) == 0
    frontend.check()


def test_a_regression_defaults_to_a_number() -> None:
    frontend = a_frontend(Application("digits", ("one",), task="regression", default=0.5))
    ask(frontend)
    frontend.tick(NOW + ms(100))
    assert defaulted(frontend)["prediction"] == [0.5]


def test_without_a_default_silence_is_lost_as_for_models() -> None:
    frontend = a_frontend()
    ask(frontend, "bare")
    assert frontend.wakeup_ns() == NOW + ms(90)
    frontend.tick(NOW + ms(90))
    assert the_answer(frontend).status == Status.LOST


def test_the_default_is_of_as_many_rows_as_were_asked_for() -> None:
    frontend = a_frontend()
    ask(frontend, rows=2)
    frontend.tick(NOW + ms(100))
    (out,) = [out for out in frontend.out if isinstance(out.message, Answer)]
    assert np.frombuffer(out.buffers[0], np.int64).tolist() == [7, 7]


# how early


def stalls(frontend: Frontend, late_ns: int, count: int = 30) -> int:
    """A loop that comes so late to its timers, again and again, while an application is asked; the time then."""
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
def test_a_default_is_due_as_early_as_the_loop_is_late(late_ms: int, lead_ms: int) -> None:
    """Where it is later than a quarter of the time there is, the selector still has the rest."""
    frontend = a_frontend()
    now_ns = stalls(frontend, ms(late_ms))
    query = ask(frontend, now_ns=now_ns)
    assert query is not None
    assert query.budget_ns == ms(40 - lead_ms)
    frontend.tick(now_ns + ms(40 - lead_ms + min(late_ms, lead_ms)))
    answer = the_answer(frontend)
    assert (answer.status, answer.defaulted) == (Status.OK, True)


@pytest.mark.parametrize(("at_ns", "status"), [(0, Status.OK), (1, Status.LATE)])
def test_a_default_is_late_only_after_the_deadline(at_ns: int, status: Status) -> None:
    frontend = a_frontend()
    ask(frontend)
    frontend.tick(NOW + ms(40) + at_ns)
    answer = the_answer(frontend)
    assert (answer.status, answer.defaulted) == (status, True)


def test_requests_that_are_due_at_once_do_not_hide_a_stall() -> None:
    lead = DefaultLead(ms(2))
    lead.lead_ns(0)
    lead.measure_delay(ms(50) + ms(9))
    for at_ns in range(ms(60), ms(61), 1000):
        lead.lead_ns(at_ns)
        lead.measure_delay(at_ns)
    assert lead.lead_ns(ms(61)) == ms(9)


def test_a_stall_of_long_ago_is_forgotten_and_nothing_wakes_a_frontend_that_is_not_asked() -> None:
    lead = DefaultLead(ms(2))
    lead.lead_ns(0)
    lead.measure_delay(ms(90))
    assert lead.lead_ns(ms(90)) == ms(40)
    while (at_ns := lead.timer_ns) is not None:
        lead.measure_delay(at_ns)
    assert lead.timer_ns is None
    assert lead.lead_ns(s(61)) == ms(2)
