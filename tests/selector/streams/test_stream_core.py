"""Streams in the core of the selector: steps, items, deadlines, back-pressure and the one end."""

from __future__ import annotations

from typing import Any

import pytest

from harness.builders import a_spec, a_state, sent
from horologe_common.clock import ms, s
from horologe_common.core.protocol import PeerConnected, PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import (
    STREAM_IDLE_NS,
    STREAM_WINDOW,
    Answer,
    Cancel,
    EndStreams,
    ItemsTaken,
    Models,
    Outcome,
    Outputs,
    Query,
    Release,
    RowStatus,
    StreamLimits,
    StreamStep,
    Submit,
    Tensor,
)
from selector.selector_harness import CONTROLLER, FRONTEND, WORKER, SelectorHarness

TEXT = a_spec("text", streams=True, batched=False, batch_sizes=(1, 2))
ITEM = (Tensor("y", "FP32", (1, 1), 4),)
QUERY = 5


class StreamDesk(SelectorHarness):
    """A selector with a model that streams. The test plays its worker."""

    start_ns = s(1000)

    def __init__(self, **settings: Any) -> None:
        super().__init__("m", **settings)
        self.send(CONTROLLER, Models(0, (a_state(TEXT),)))
        self.send("", PeerConnected(WORKER))
        self.selector.out.clear()

    def open(self, first_ms: float = 100, gap_ms: float = 50, budget_ms: float = 0, number: int = QUERY) -> None:
        limits, best_effort = StreamLimits(ms(first_ms), ms(gap_ms)), not budget_ms
        budget_ns = ms(budget_ms) or s(30)
        self.send(FRONTEND, Query(number, "text/1", budget_ns, 1, best_effort=best_effort, stream=limits))

    def submit(self) -> Submit:
        """Return the only step that was submitted since the last call."""
        (submit,) = sent(self.selector, Submit, CONTROLLER)
        return submit

    def finish(self, submit: Submit, *, more: bool = True, outputs: tuple[Tensor, ...] = ITEM) -> None:
        row = RowStatus(submit.id, 1, more=more)
        message = Outputs(1, (row,), outputs, "text/1", 1, share=2)
        self.send(WORKER, message, [bytes(4) for _ in outputs])

    def fail(self, submit: Submit, status: Status) -> None:
        self.send(CONTROLLER, Outcome(submit.id, int(status), "why"))

    def answers(self) -> list[tuple[str, bool]]:
        """Return the status and `more` of the answers since the last call."""
        return [(Status(answer.status).name, answer.more) for answer in sent(self.selector, Answer, FRONTEND)]

    def ends(self) -> list[EndStreams]:
        return sent(self.selector, EndStreams, WORKER)


def test_each_step_follows_its_item_and_runs_where_the_state_is() -> None:
    desk = StreamDesk()
    desk.open()
    first = desk.submit()
    assert (first.step, first.holder, first.input_id) == (StreamStep(first.id, 1), FRONTEND, QUERY)
    assert first.budget_ns == ms(100)
    assert not first.best_effort
    desk.finish(first)
    second = desk.submit()
    assert second.step == StreamStep(first.id, 2, WORKER, 2)
    assert second.budget_ns == ms(50)
    desk.finish(second, more=False)
    assert desk.answers() == [("OK", True), ("OK", False)]
    assert not desk.ends(), "the model has dropped its state"
    assert not desk.selector.streams


def test_an_end_without_an_item() -> None:
    desk = StreamDesk()
    desk.open()
    desk.finish(desk.submit(), more=False, outputs=())
    (answer,) = sent(desk.selector, Answer, FRONTEND)
    assert (answer.status, answer.outputs, answer.more) == (0, (), False)


def test_an_item_may_need_several_steps_within_one_deadline() -> None:
    desk = StreamDesk()
    desk.open()
    desk.finish(desk.submit(), outputs=())
    desk.advance_by(ms(60))
    desk.finish(desk.submit(), outputs=())
    assert desk.submit().budget_ns == ms(40)
    assert desk.answers() == []
    desk.advance_by(ms(40))
    assert desk.answers() == [("LATE", False)]


def test_no_step_runs_while_the_receiver_has_no_room() -> None:
    desk = StreamDesk()
    desk.open()
    for _ in range(STREAM_WINDOW):
        desk.finish(desk.submit())
    assert sent(desk.selector, Submit, CONTROLLER) == []
    desk.send(FRONTEND, ItemsTaken(QUERY, 1))
    desk.finish(desk.submit())
    assert sent(desk.selector, Submit, CONTROLLER) == []
    desk.advance_by(STREAM_IDLE_NS)
    assert desk.answers() == [("OK", True)] * (STREAM_WINDOW + 1) + [("CANCELLED", False)]
    assert [end.streams for end in desk.ends()]


def test_reports_of_items_that_were_not_sent_are_ignored() -> None:
    desk = StreamDesk()
    desk.open()
    desk.finish(desk.submit())
    for items in (-1, 0, 2, 100):
        desk.send(FRONTEND, ItemsTaken(QUERY, items))
    desk.send(FRONTEND, ItemsTaken(99, 1))
    assert len(desk.selector.streams) == 1


def test_a_late_item_is_not_sent_and_ends_the_stream_once() -> None:
    desk = StreamDesk()
    desk.open()
    desk.finish(desk.submit())
    late = desk.submit()
    desk.advance_by(ms(50))
    assert desk.answers() == [("OK", True), ("LATE", False)]
    assert [(end.share, end.model) for end in desk.ends()] == [(2, "text/1")]
    assert [cancel.ids for cancel in sent(desk.selector, Cancel, CONTROLLER)] == [(late.id,)]
    desk.finish(late)
    assert desk.answers() == []


@pytest.mark.parametrize(
    ("items", "status", "end"),
    [
        (0, Status.REFUSED, "REFUSED"),
        (1, Status.REFUSED, "LATE"),
        (1, Status.LATE, "LATE"),
        (1, Status.LOST, "LOST"),
        (1, Status.FAILED, "FAILED"),
        (1, Status.UNKNOWN_MODEL, "LOST"),
    ],
)
def test_how_a_failed_step_ends_the_stream(items: int, status: Status, end: str) -> None:
    desk = StreamDesk()
    desk.open()
    for _ in range(items):
        desk.finish(desk.submit())
    desk.fail(desk.submit(), status)
    assert desk.answers() == [("OK", True)] * items + [(end, False)]
    assert len(desk.ends()) == items


def test_the_deadline_of_the_whole_stream() -> None:
    desk = StreamDesk()
    desk.open(first_ms=0, gap_ms=0, budget_ms=80)
    assert desk.submit().budget_ns == ms(80)
    desk.advance_by(ms(80))
    (answer,) = sent(desk.selector, Answer, FRONTEND)
    assert answer.reason == "the stream, with 0 items, was not there within 80 ms"


@pytest.mark.parametrize(
    ("gap_ms", "budget_ms", "limit"),
    [
        (0, 80, "the stream, with 0 items, was not there within 80 ms"),
        (50, 80, "item 1 of the stream was not there within 50 ms"),
        (100, 80, "the stream, with 0 items, was not there within 80 ms"),
        (50, 0, "item 1 of the stream was not there within 50 ms"),
        (0, 0, "item 1 of the stream was not there within 30000 ms"),
    ],
)
def test_a_step_that_is_refused_before_its_deadline_names_the_earlier_limit(
    gap_ms: float, budget_ms: float, limit: str
) -> None:
    desk = StreamDesk()
    desk.open(first_ms=gap_ms, gap_ms=gap_ms, budget_ms=budget_ms)
    desk.finish(desk.submit(), outputs=())
    desk.advance_by(ms(20))
    desk.fail(desk.submit(), Status.REFUSED)
    (answer,) = sent(desk.selector, Answer, FRONTEND)
    assert (Status(answer.status), answer.reason) == (Status.LATE, f"{limit}: why")


def test_a_cancelled_stream_has_no_answer_and_drops_its_state() -> None:
    desk = StreamDesk()
    desk.open()
    desk.finish(desk.submit())
    desk.answers()
    desk.send(FRONTEND, Cancel((QUERY,)))
    assert [release.ids for release in sent(desk.selector, Release, FRONTEND)] == [(QUERY,)]
    assert len(desk.ends()) == 1
    assert desk.answers() == []
    assert not desk.selector.streams


def test_the_state_of_a_stream_that_ended_before_its_first_step_is_dropped() -> None:
    desk = StreamDesk()
    desk.open()
    first = desk.submit()
    desk.send(FRONTEND, Cancel((QUERY,)))
    assert desk.ends() == []
    desk.finish(first)
    assert [end.streams for end in desk.ends()] == [(first.id,)]


def test_a_lost_worker_ends_its_streams() -> None:
    desk = StreamDesk()
    desk.open()
    desk.finish(desk.submit())
    desk.send("", PeerDisconnected(WORKER))
    assert desk.answers() == [("OK", True), ("LOST", False)]


def test_streams_of_a_lost_frontend_are_dropped() -> None:
    desk = StreamDesk()
    desk.open()
    desk.finish(desk.submit())
    desk.send("", PeerDisconnected(FRONTEND))
    assert len(desk.ends()) == 1
    assert not desk.selector.streams


def test_a_new_controller_gets_the_step_in_flight_again() -> None:
    desk = StreamDesk()
    desk.open()
    desk.finish(desk.submit())
    step = desk.submit()
    desk.send("", PeerDisconnected(CONTROLLER))
    desk.send("", PeerConnected("controller/0#2"))
    (again,) = sent(desk.selector, Submit, "controller/0#2")
    assert (again.id, again.step) == (step.id, step.step)


def test_too_many_streams_are_refused() -> None:
    desk = StreamDesk(streams=1)
    desk.open()
    desk.open(number=6)
    assert desk.answers() == [("REFUSED", False)]


def test_metrics_measure_the_first_item_and_the_gaps() -> None:
    desk = StreamDesk()
    desk.open(first_ms=1000, gap_ms=1000)
    for wait_ms in (300, 20, 20):
        desk.advance_by(ms(wait_ms))
        desk.finish(desk.submit())
    desk.selector.refresh_stats()
    stats = desk.selector.stats
    assert stats.values["horologe_streams_open", "text", "1"] == 1
    first, gap = (stats.histograms[f"horologe_stream_{kind}_seconds", "text", "1"] for kind in ("first_item", "gap"))
    assert (first.total, first.sum, gap.total, gap.sum) == (1, ms(300), 2, ms(40))
