"""Messages to the selector with values out of range, from wrong senders, and peers that never answer."""

from __future__ import annotations

import random
from typing import Any

import pytest

from harness.forged_desk import MESSAGES, ForgedDesk
from harness.forged_messages import SENDERS, forged_messages
from horologe_common.clock import ms
from horologe_common.core.protocol import PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import (
    Answer,
    Cancel,
    Dispatch,
    ModelCall,
    Outcome,
    Outputs,
    Pong,
    Query,
    RowStatus,
    RunDone,
    Ship,
    Shipped,
    Submit,
)
from horologe_selector.store import RecordsRead
from selector.pipeline_desk import INPUTS, OUTPUTS, RESULT, ROW
from selector.selector_harness import FRONTEND, WORKER


@pytest.mark.parametrize(("sender", "message"), MESSAGES, ids=lambda value: type(value).__name__)
def test_no_value_of_a_message_is_a_fault(sender: str, message: Any) -> None:
    for number, (name, forged, buffers) in enumerate(forged_messages(message)):
        if not number % 10:
            desk = ForgedDesk()
        try:
            desk.receive(sender, forged, buffers)
            desk.advance(ms(1))
            desk.serve(1000 + 10 * number)
        except Exception as error:
            raise AssertionError(f"{name}: {forged}"[:2000]) from error


@pytest.mark.parametrize(("right", "message"), MESSAGES, ids=lambda value: type(value).__name__)
def test_no_sender_of_a_message_is_a_fault(right: str, message: Any) -> None:
    buffers = (
        [ROW] if isinstance(message, Ship | ModelCall) else [bytes(4)] if isinstance(message, Outputs | RunDone) else []
    )
    for sender in (*SENDERS, "driver/p", "driver/x"):
        desk = ForgedDesk()
        desk.receive(sender, message, buffers)
        desk.advance(ms(1))
        desk.serve(1000)
        roles = {right.partition("/")[0], "selector", "frontend", "driver"}
        if isinstance(message, Pong):  # the selector pings controllers and workers too
            roles |= {"controller", "worker"}
        if sender.partition("/")[0] not in roles:
            dropped = desk.selector.stats.values.get(("horologe_invalid_messages_total", type(message).__name__))
            assert dropped == 1 or isinstance(message, Submit)


def test_ids_that_are_not_known_change_nothing() -> None:
    desk = ForgedDesk()
    for message, buffers in (
        (Outputs(1, (RowStatus(999, 1),), OUTPUTS, "m/1"), [bytes(4)]),
        (Outcome(999, 5), []),
        (Cancel((999,)), []),
        (Dispatch(1, WORKER, (999,)), []),
        (Ship(999, FRONTEND, (Shipped(3, INPUTS),)), [ROW]),
        (ModelCall(999, 1, "m", 1, (), INPUTS), [ROW]),
        (RunDone(999, 0, "", RESULT), [bytes(4)]),
        (Pong(123, 456), []),
    ):
        for sender in (*SENDERS, "driver/p"):
            desk.receive(sender, message, buffers)
    assert not desk.take(Answer)
    desk.serve(1000)


def test_silent_peers_cost_each_query_its_answer_in_time_and_nothing_more() -> None:
    """Neither controller, worker, driver, frontend nor the store's thread answers."""
    desk = ForgedDesk()
    desk.store.unavailable = True
    numbers = range(100, 160)
    for number in numbers:
        hashed, context = number.to_bytes(32, "big"), str(random.Random(number).random())
        desk.receive(FRONTEND, Query(number, "", ms(100), 1, hashed, application="digits", context=context))
        desk.receive(FRONTEND, Query(number + 1000, "p/1", ms(100), 1))
        desk.advance(ms(2))
    for _ in range(60):
        desk.advance(ms(100))
    answered = [answer.id for answer in desk.take(Answer)]
    assert sorted(number for number in answered if number in numbers) == list(numbers)
    desk.receive("", PeerDisconnected(FRONTEND))
    assert desk.selector.applications.drained()
    assert not desk.selector._waiters


def test_a_reply_of_the_store_that_was_not_asked_for_is_ignored() -> None:
    desk = ForgedDesk()
    desk.receive(
        desk.selector.store, RecordsRead(("contexts/digits\nx", "", "applications\ndigits"), [None, None, None])
    )
    desk.serve(1000)


@pytest.mark.parametrize(("rows", "budget_ns"), [(0, 5), (-1, 5), (1 << 62, 5), (1, 1 << 63), (1, -(1 << 62))])
def test_a_query_out_of_range_is_answered_once_and_not_submitted(rows: int, budget_ns: int) -> None:
    desk = ForgedDesk()
    for model, application in (("m/1", ""), ("", "digits"), ("p/1", "")):
        desk.receive(FRONTEND, Query(70, model, budget_ns, rows, bytes(32), application=application))
        assert desk.answer().status == Status.INVALID_INPUT
    assert not desk.take(Submit)
    desk.serve(1000)


@pytest.mark.parametrize("model", ["m/1", "p/1"])
def test_a_query_whose_deadline_has_passed_is_not_out_of_range(model: str) -> None:
    """A frontend sends a query again after its selector was lost, with what is left of its budget."""
    desk = ForgedDesk()
    desk.receive(FRONTEND, Query(70, model, -5_000_000, 1))
    assert not [answer for answer in desk.take(Answer) if answer.status == Status.INVALID_INPUT]
