"""Streams of items that a caller iterates over: blocking, and for asyncio."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from horologe.core.item_buffer import ItemBuffer
from horologe_common.status import Cancelled

if TYPE_CHECKING:
    from horologe.core.reply import Reply
    from horologe.transport.blocking_link import BlockingLink
    from horologe.transport.loop_link import LoopLink


class ItemStream(ItemBuffer):
    """Iterator over the items of a stream, each as `Client.predict` returns outputs. `reply`: the `Reply` of the last.

    A context manager: at its end, an open stream is cancelled. So is one that is not referenced any more. It belongs
    to the thread that opened it.
    """

    def __init__(self, link: BlockingLink) -> None:
        super().__init__()
        self.reply: Reply | None = None
        self._link = link

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(Exception):  # at the exit of the interpreter, the connection may be closed
            self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        link = self._link
        with link.lock:
            if not self.is_readable():
                link.wait(self.is_readable)
            if (reply := self.pop_item()) is None:
                raise StopIteration
            if report := self.pop_report():
                now_ns = time.monotonic_ns()
                link.session.take_items(now_ns, self.request_id, report)
                link.post(now_ns)
        self.reply = reply
        return reply.value

    def close(self) -> None:
        """Cancel the stream, also at the server, unless it has ended."""
        with self._link.lock:
            if not self.done():
                self._link.session.cancel(self.request_id)
                self.set_exception(Cancelled("cancelled by the caller"))
                self._link.post(time.monotonic_ns())


class AsyncItemStream(ItemBuffer):
    """Asynchronous iterator over the items of a stream; see `ItemStream`. One task at a time may wait for an item.

    If this task is cancelled, or the iterator is closed, the stream is cancelled at the server.
    """

    def __init__(self, link: LoopLink) -> None:
        super().__init__()
        self.reply: Reply | None = None
        self._link = link
        self._arrived = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        with suppress(Exception):  # the loop may be closed
            self._cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        while not self.is_readable():
            self._arrived.clear()
            try:
                await self._arrived.wait()
            except asyncio.CancelledError:
                self._cancel()
                raise
        if (reply := self.pop_item()) is None:
            raise StopAsyncIteration
        if report := self.pop_report():
            self._link.session.take_items(time.monotonic_ns(), self.request_id, report)
            self._link.post()
        self.reply = reply
        return reply.value

    async def aclose(self) -> None:
        """Cancel the stream, also at the server, unless it has ended."""
        self._cancel()

    def add_item(self, item: Reply) -> None:
        super().add_item(item)
        self._arrived.set()

    def set_result(self, result: Any, /) -> None:
        super().set_result(result)
        self._arrived.set()

    def set_exception(self, exception: BaseException, /) -> None:
        super().set_exception(exception)
        self._arrived.set()

    def _cancel(self) -> None:
        if not self.done():
            self._link.session.cancel(self.request_id)
            self.set_exception(Cancelled("cancelled by the caller"))
            self._link.post()
