"""Clients of the SDK behind one interface: the blocking one, and the asynchronous one in two kinds of loop."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Self

import pytest
import uvloop

from horologe import AsyncClient, Client

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from concurrent.futures import Future

PATIENCE_S = 60
LOOPS = {"blocking": None, "asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class ClientInLoop:
    """An asynchronous client in a loop of its own, with the interface of the blocking client."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *arguments: Any, **options: Any) -> None:
        self._loop = loop
        self._thread = threading.Thread(target=loop.run_forever)
        self._thread.start()
        self._client = AsyncClient(*arguments, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._start(self._client.close()).result(PATIENCE_S)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments, **options: self._start(self._call(name, arguments, options)).result(PATIENCE_S)

    def submit(self, *arguments: Any, **options: Any) -> Future[Any]:
        return self._start(self._call("submit", arguments, options))

    async def _call(self, name: str, arguments: Any, options: Any) -> Any:
        return await getattr(self._client, name)(*arguments, **options)

    def _start(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(params=LOOPS)
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """A function that creates a client, blocking or asynchronous."""
    new_loop = LOOPS[request.param]
    if new_loop is None:
        yield Client
        return
    clients: list[ClientInLoop] = []

    def create(*arguments: Any, **options: Any) -> ClientInLoop:
        clients.append(ClientInLoop(new_loop(), *arguments, **options))
        return clients[-1]

    yield create
    for client in clients:
        client.stop()
