"""The stream of a model, as a driver reads it: `async for outputs in call.stream(model, tensors)`."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from horologe_common.wire import CallTaken

if TYPE_CHECKING:
    import asyncio

    from numpy.typing import NDArray

    from horologe_selector.drivers.driver_runs import DriverRun, DriverRuns


class CallStream:
    """Asynchronous iterator over the items of a call. `aclose()` ends the stream; so does the end of its run."""

    def __init__(self, runs: DriverRuns, run: DriverRun, call: int) -> None:
        self._runs = runs
        self._run = run
        self._call = call
        self._items: deque[dict[str, NDArray[Any]]] = deque()
        self._taken = 0
        self._end: asyncio.Future[dict[str, NDArray[Any]]] | None = None
        """The call, which ends with the stream."""
        self._arrived: asyncio.Future[None] | None = None

    def begin(self, end: asyncio.Future[dict[str, NDArray[Any]]]) -> None:
        self._end = end
        end.add_done_callback(lambda _: self._wake())

    def add_item(self, outputs: dict[str, NDArray[Any]]) -> None:
        self._items.append(outputs)
        self._wake()

    def _wake(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    def __aiter__(self) -> CallStream:
        return self

    async def __anext__(self) -> dict[str, NDArray[Any]]:
        end = self._end
        assert end is not None
        while not self._items and not end.done():
            self._arrived = self._runs.loop.create_future()
            await self._arrived
        if self._items:
            self._taken += 1
            self._runs.out.append((CallTaken(self._run.id, self._call, self._taken), ()))
            return self._items.popleft()
        outputs = end.result()
        self._close()
        if not outputs:
            raise StopAsyncIteration
        return outputs

    def _close(self) -> None:
        """Have no further item. The last outputs are one, once."""
        self._items.clear()
        self._end = self._runs.loop.create_future()
        self._end.set_result({})

    async def aclose(self) -> None:
        """End the stream, unless it has ended."""
        self._close()
        self._runs.end_stream(self._run, self._call)
