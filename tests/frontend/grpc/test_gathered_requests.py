"""Requests of several gRPC calls are given to the core together, and none waits for long."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from harness.event_loop import in_loop
from horologe_common.clock import s
from horologe_common.wire import Answer, Predict
from horologe_frontend.grpc import gathered_requests
from horologe_frontend.grpc.gathered_requests import GATHERED_MAX, GatheredRequests

if TYPE_CHECKING:
    from collections.abc import Callable


class Desk:
    """A gateway that records what it gets. `broken`: the model for which it raises."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.cancelled: list[int] = []
        self.replies: dict[int, Callable[[Any, Any], None]] = {}

    def send(self, predict: Predict, buffers: Any, on_reply: Any, client: str, sent_ns: int = 0) -> int:
        if predict.model == "broken":
            raise RuntimeError("a fault of ours")
        assert sent_ns > 0
        self.sent.append(predict.model)
        self.replies[len(self.sent)] = on_reply
        return len(self.sent)

    def cancel(self, key: int) -> None:
        self.cancelled.append(key)

    def answer(self, key: int) -> None:
        self.replies.pop(key)(Answer(key, 0, reason=str(key)), ())


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests wait for as long as the test takes, unless a rule sends them."""
    monkeypatch.setattr(gathered_requests, "WAIT_NS", s(60))
    monkeypatch.setattr(gathered_requests, "INTERVALS", 1_000_000)


def gathering() -> tuple[Desk, GatheredRequests, Callable[[str], asyncio.Task[Any]]]:
    desk: Any = Desk()
    requests = GatheredRequests(desk)

    def start(model: str) -> asyncio.Task[Any]:
        return asyncio.create_task(requests.predict(Predict(0, model, "", 0, ()), (), "ann"))

    return desk, requests, start


@in_loop
async def test_a_request_that_is_alone_is_sent_at_once() -> None:
    desk, requests, start = gathering()
    for number in (1, 2):
        task = start("a")
        await asyncio.sleep(0)
        assert len(desk.sent) == number
        desk.answer(number)
        assert (await task)[0].reason == str(number)
    requests.close()


@in_loop
async def test_others_wait_until_the_core_has_none() -> None:
    desk, requests, start = gathering()
    tasks = [start(model) for model in "abcd"]
    await asyncio.sleep(0)
    assert desk.sent == ["a"]
    desk.answer(1)
    assert desk.sent == ["a", "b", "c", "d"]
    for key in (4, 2, 3):
        desk.answer(key)
    assert [answer.reason for answer, _ in await asyncio.gather(*tasks)] == ["1", "2", "3", "4"]
    requests.close()


@in_loop
async def test_a_full_group_is_sent() -> None:
    desk, requests, start = gathering()
    tasks = [start("a") for _ in range(GATHERED_MAX + 1)]
    await asyncio.sleep(0)
    assert len(desk.sent) == GATHERED_MAX + 1
    for key in list(desk.replies):
        desk.answer(key)
    await asyncio.gather(*tasks)
    requests.close()


@pytest.mark.parametrize("bound", ["WAIT_NS", "INTERVALS"])
@in_loop
async def test_no_request_waits_for_longer_than_the_bounds(bound: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gathered_requests, bound, 1)
        desk, requests, start = gathering()
        tasks = [start(model) for model in "abc"]
        async with asyncio.timeout(10):
            while len(desk.sent) < 3:  # noqa: ASYNC110 - the alarm sends them
                await asyncio.sleep(0.001)
        for key in list(desk.replies):
            desk.answer(key)
        await asyncio.gather(*tasks)
        requests.close()


@in_loop
async def test_a_cancelled_request_is_not_sent_or_is_cancelled_in_the_core() -> None:
    desk, requests, start = gathering()
    first, second, third = start("a"), start("b"), start("c")
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    assert desk.cancelled == [1]
    assert first.cancelled()
    assert second.cancelled()
    fourth = start("d")
    await asyncio.sleep(0)
    assert desk.sent == ["a", "c", "d"]
    desk.answer(2)
    desk.answer(3)
    await asyncio.gather(third, fourth)
    desk.answer(1)  # late: nobody waits for it
    requests.close()


@in_loop
async def test_a_request_that_cannot_be_sent_does_not_keep_the_others() -> None:
    desk, requests, start = gathering()
    first, broken, third = start("a"), start("broken"), start("c")
    await asyncio.sleep(0)
    desk.answer(1)
    assert desk.sent == ["a", "c"]
    with pytest.raises(RuntimeError):
        await broken
    desk.answer(2)
    await asyncio.gather(first, third)
    requests.close()
