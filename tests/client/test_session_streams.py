"""Streams of the client's session: items in their order, reports of what was taken, one end, and the timer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from client.talk import Talk, X
from harness.builders import a_spec
from horologe.core.item_buffer import REPORT_ITEMS, ItemBuffer
from horologe.core.pending_requests import BEST_EFFORT_NS, PredictOptions
from horologe_common.clock import ms
from horologe_common.status import InvalidInput, Late, Lost, Status
from horologe_common.wire import Answer, Cancel, ItemsTaken, Predict, StreamLimits, Tensor

ITEM = (Tensor("y", "FP32", (1, 1), 4),)


def a_stream(talk: Talk, **options: Any) -> tuple[ItemBuffer, Predict]:
    """Open a stream, and return its buffer and its request."""
    items = ItemBuffer()
    items.request_id = talk.session.stream(talk.now_ns, items, "sum", X, PredictOptions(**options))
    ((message, _),) = talk.sent()
    return items, message


def send_item(talk: Talk, request: Predict, value: float, **fields: Any) -> None:
    given = {"more": True} | fields
    talk.get(Answer(request.id, 0, ITEM, **given), buffers=[np.float32(value).tobytes()])


def take(talk: Talk, items: ItemBuffer) -> float | None:
    """Take the next item, and report it as the clients do."""
    reply = items.pop_item()
    if report := items.pop_report():
        talk.session.take_items(talk.now_ns, items.request_id, report)
    return None if reply is None else float(reply.value[0, 0])


def test_items_are_taken_in_order_and_reported_in_groups() -> None:
    talk = Talk().knowing(a_spec())
    items, request = a_stream(talk, gap_ms=20, first_item_ms=100)
    assert request.stream == StreamLimits(ms(100), ms(20))
    assert not items.is_readable()
    for number in range(6):
        send_item(talk, request, number)
    assert [take(talk, items) for _ in range(6)] == list(range(6))
    assert [message for message, _ in talk.sent()] == [ItemsTaken(request.id, REPORT_ITEMS)]
    send_item(talk, request, 6, more=False)
    assert items.done()
    assert [take(talk, items), take(talk, items)] == [6, None]
    assert talk.sent() == []
    talk.session.pending.check()


def test_an_error_comes_after_the_items_before_it() -> None:
    talk = Talk().knowing(a_spec())
    items, request = a_stream(talk)
    send_item(talk, request, 1)
    talk.get(Answer(request.id, int(Status.LATE), (), "why"))
    assert take(talk, items) == 1
    with pytest.raises(Late, match="why"):
        take(talk, items)


def test_a_stream_without_a_deadline_lives_as_long_as_it_moves() -> None:
    talk = Talk().knowing(a_spec())
    items, request = a_stream(talk)
    for _ in range(3):
        talk.after(BEST_EFFORT_NS - ms(1))
        send_item(talk, request, 0)
    talk.after(BEST_EFFORT_NS + ms(51))
    assert isinstance(items.error, Lost)


def test_a_stream_with_a_deadline_ends_by_it() -> None:
    talk = Talk().knowing(a_spec())
    items, request = a_stream(talk, slo_ms=300)
    talk.after(ms(200))
    send_item(talk, request, 0)
    talk.after(ms(151))
    assert isinstance(items.error, Lost)


def test_a_cancelled_stream() -> None:
    talk = Talk().knowing(a_spec())
    items, request = a_stream(talk)
    talk.session.cancel(items.request_id)
    assert [message for message, _ in talk.sent()] == [Cancel((request.id,))]
    send_item(talk, request, 0)
    assert not items.is_readable()


def test_a_wrong_limit_is_named() -> None:
    talk = Talk().knowing(a_spec())
    items = ItemBuffer()
    talk.session.stream(talk.now_ns, items, "sum", X, PredictOptions(gap_ms=-1))
    assert isinstance(items.error, InvalidInput)
    assert items.error.reason.startswith("gap_ms: got -1")
