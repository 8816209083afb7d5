"""The gateway to the frontend core: ids, replies, cancellation."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from harness.event_loop import in_loop
from horologe_common.status import Status
from horologe_common.wire import Admit, Answer, Cancel, Models, Predict, RefusedAgain, Tensor
from horologe_frontend.gateway import REPORT_S, Gateway

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Buffer


class FakeRouter:
    """A router that records the posted messages."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.deliver: Callable[[Any, Sequence[Buffer]], None]

    def attach(self, address: str, deliver: Callable[[Any, Sequence[Buffer]], None]) -> None:
        assert address == "http/0#1"
        self.deliver = deliver

    def post(self, sender: str, to: str, message: Any, buffers: Sequence[Buffer] = ()) -> None:
        assert (sender, to) == ("http/0#1", "frontend/0#1")
        self.sent.append(message)


def a_gateway() -> tuple[FakeRouter, Gateway]:
    router: Any = FakeRouter()
    core: Any = SimpleNamespace(address="frontend/0#1")
    gateway = Gateway(router, "http/0#1", core)
    gateway.open()
    return router, gateway


def a_predict() -> Predict:
    return Predict(0, "echo", "", 7, (Tensor("in", "FP32", (3, 4), 48),), ("out",), "chat")


@in_loop
async def test_answers_in_any_order_complete_their_calls() -> None:
    router, gateway = a_gateway()
    tasks = [asyncio.create_task(gateway.predict(a_predict(), [b"x"], "")) for _ in range(3)]
    await asyncio.sleep(0)
    assert [m.budget_ns for m in router.sent] == [7, 7, 7]
    assert len({m.id for m in router.sent}) == 3
    assert all(m.id > 0 for m in router.sent)
    for m in reversed(router.sent):
        router.deliver(Answer(m.id, Status.OK, reason=str(m.id), version="1", exec_ns=5, batch_size=4), [b"y"])
    answers = [await task for task in tasks]
    assert [answer.reason for answer, _ in answers] == [str(m.id) for m in router.sent]
    assert len(gateway.callbacks) == 0


@in_loop
async def test_cancelling_the_task_sends_cancel_and_a_late_answer_is_dropped() -> None:
    router, gateway = a_gateway()
    task = asyncio.create_task(gateway.predict(a_predict(), [b"x"], ""))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    predict, cancel = router.sent
    assert cancel == Cancel((predict.id,))
    router.deliver(Answer(predict.id, Status.OK), [])
    router.deliver(Answer(99, Status.OK), [])
    assert len(gateway.callbacks) == 0


def test_a_callback_gets_the_reply_once_unless_it_is_cancelled() -> None:
    router, gateway = a_gateway()
    replies: list[Any] = []
    first, second = (gateway.send(a_predict(), [b"x"], lambda reply, _: replies.append(reply.id), "") for _ in range(2))
    gateway.cancel(second)
    for _ in range(2):
        router.deliver(Answer(first, Status.OK), [])
        router.deliver(Answer(second, Status.OK), [])
    gateway.cancel(first)
    assert replies == [first]
    assert router.sent[2:] == [Cancel((second,))]


def test_a_callback_that_raises_does_not_reach_the_router() -> None:
    router, gateway = a_gateway()
    key = gateway.send(a_predict(), [b"x"], lambda reply, _: reply.nonsense, "")
    router.deliver(Answer(key, Status.OK), [])
    assert len(gateway.callbacks) == 0


@in_loop
async def test_a_call_returns_the_reply_with_its_id() -> None:
    router, gateway = a_gateway()
    task = asyncio.create_task(gateway.call(Admit(0, "echo", "", True)))
    await asyncio.sleep(0)
    (admit,) = router.sent
    router.deliver(Models(admit.id, (), Status.LOST, "gone"), ())
    assert await task == Models(admit.id, (), Status.LOST, "gone")


@in_loop
async def test_refused_requests_are_reported_together() -> None:
    router, gateway = a_gateway()
    for model in ("a/1", "b/1", "a/1"):
        gateway.count_refused(model)
    assert router.sent == []
    await asyncio.sleep(2 * REPORT_S)
    assert router.sent == [RefusedAgain((("a/1", 2), ("b/1", 1)))]
    gateway.report_refused()
    assert len(router.sent) == 1
    gateway.count_refused("a/1")
    gateway.report_refused()
    assert router.sent[1] == RefusedAgain((("a/1", 1),))
