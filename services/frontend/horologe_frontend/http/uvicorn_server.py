"""The same face over uvicorn, inside a loop that runs already: an ASGI application without a framework."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import uvicorn

from horologe_frontend.http.exchange import Request, Response, failure
from horologe_frontend.http.uvicorn_protocol import BoundedProtocol

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, MutableMapping

    from horologe_frontend.http.limits import Gate

    Event = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Event]]
    Send = Callable[[Event], Awaitable[None]]

LINGER_S = 2.0


class UvicornServer:
    """Serves connections of a listening socket until it is closed."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._server: EmbeddedServer | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(self, listener: socket.socket) -> None:
        settings = self._gate.settings
        config = uvicorn.Config(
            Application(self._gate),
            http=type("Bounded", (BoundedProtocol,), {"settings": settings}),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            limit_concurrency=settings.max_connections + 1,
            timeout_keep_alive=math.ceil(settings.idle_timeout_ns / 1e9),
            timeout_graceful_shutdown=math.ceil(settings.drain_ns / 1e9),
        )
        self._server = server = EmbeddedServer(config)
        await server.begin(listener)
        self._task = asyncio.create_task(server.finish(listener))

    async def close(self, drain_ns: int) -> None:
        """Listen no more, finish what is in flight within `drain_ns`, cancel the rest."""
        if self._server is None or self._task is None:
            return
        self._server.should_exit = True
        if not await self._gate.idle(drain_ns):
            for task in list(self._server.server_state.tasks):
                task.cancel()
        await self._task


class EmbeddedServer(uvicorn.Server):
    """uvicorn's `serve` in two parts and without its signal handlers, which belong to the process around it."""

    async def begin(self, listener: socket.socket) -> None:
        self.config.load()
        self.lifespan = self.config.lifespan_class(self.config)
        await self.startup([listener])

    async def finish(self, listener: socket.socket) -> None:
        """Runs until `should_exit`, then drains."""
        await self.main_loop()
        await self.shutdown([listener])


class Application:
    """ASGI: reads the body within its bounds, asks the handler, and cancels it when the client leaves."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            headers[name] = headers[name] + b", " + value if name in headers else value
        path, query = scope["raw_path"].decode("latin-1"), scope["query_string"].decode("latin-1")
        head = Request(scope["method"], path, query, headers)
        if refusal := self._gate.enter(head):
            await _linger(refusal, receive, send)
            return
        held = _Held(self._gate)
        try:
            body = await self._read(held, receive)
            if isinstance(body, Response):
                await _linger(body, receive, send)
            elif body is not None:
                await self._serve(head._replace(body=body), receive, send)
        finally:
            self._gate.leave(held.size)

    async def _read(self, held: _Held, receive: Receive) -> bytes | Response | None:
        """The body, or the response that refuses it, or None when the client has left."""
        event = await receive()
        first: bytes = event.get("body", b"")
        if event["type"] == "http.request" and not event.get("more_body"):
            return held.take(first) or first
        try:
            async with asyncio.timeout(self._gate.settings.body_timeout_ns / 1e9):
                return await self._read_on(held, event, receive)
        except TimeoutError:
            return failure(408, "the request did not arrive in time")

    async def _read_on(self, held: _Held, event: Event, receive: Receive) -> bytes | Response | None:
        chunks = []
        while event["type"] == "http.request":
            chunk = event.get("body", b"")
            if refusal := held.take(chunk):
                return refusal
            chunks.append(chunk)
            if not event.get("more_body"):
                return b"".join(chunks)
            event = await receive()
        return None

    async def _serve(self, request: Request, receive: Receive, send: Send) -> None:
        work = asyncio.current_task()
        assert work is not None
        watch = asyncio.create_task(_watch(receive, work))
        try:
            response = await self._gate.handler.handle(request)
        except asyncio.CancelledError:
            if watch.done():
                return
            raise
        finally:
            watch.cancel()
        await _send(response, send, more=False)


class _Held:
    """The bytes of one request's body that the gate knows of."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self.size = 0

    def take(self, chunk: bytes) -> Response | None:
        refusal = self._gate.take(len(chunk), self.size + len(chunk))
        if refusal is None:
            self.size += len(chunk)
        return refusal


async def _watch(receive: Receive, work: asyncio.Task[Any]) -> None:
    event = await receive()
    if event["type"] == "http.disconnect":
        work.cancel()


async def _send(response: Response, send: Send, more: bool, close: bool = False) -> None:
    headers = [
        (b"content-length", b"%d" % len(response.body)),
        (b"content-type", response.content_type),
        *response.headers,
    ]
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body, "more_body": more})


async def _linger(response: Response, receive: Receive, send: Send) -> None:
    """Answer before the body has been read, then read on for a while: a reset could cost the client the answer."""
    await _send(response, send, more=True, close=True)
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while (event := await receive())["type"] == "http.request" and event.get("more_body"):
                pass
    await send({"type": "http.response.body", "body": b"", "more_body": False})
