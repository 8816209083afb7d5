"""The answers of one request through the gateway: the items of a stream, then the Answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.wire import Answer, Predict
    from horologe_frontend.gateway import Gateway

    Answered = tuple[Answer, Sequence[Buffer]]


class AnswerStream:
    """An asynchronous iterator of Answers, the last of which has no `more`. Used on the loop of the gateway.

    Each item counts as taken when the next one is asked for. A context manager: at its end, an open request is
    cancelled.
    """

    def __init__(self, gateway: Gateway, predict: Predict, buffers: Sequence[Buffer], client: str) -> None:
        self._gateway = gateway
        self._arrived: asyncio.Queue[Answered] = asyncio.Queue()
        """At most `STREAM_WINDOW` items and the Answer."""
        self._given = 0
        self._ended = False
        self._key = gateway.send(predict, buffers, self._on_answer, client)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Answered:
        if self._ended:
            raise StopAsyncIteration
        if self._given:
            self._gateway.take_items(self._key, self._given)
        answer, buffers = await self._arrived.get()
        self._ended = not answer.more
        self._given += answer.more
        return answer, buffers

    def close(self) -> None:
        """Cancel the request, unless its Answer has arrived."""
        self._gateway.cancel(self._key)

    def _on_answer(self, answer: Answer, buffers: Sequence[Buffer]) -> None:
        self._arrived.put_nowait((answer, buffers))
