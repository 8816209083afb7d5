"""HTTP server of /metrics, /health and /ready: an event loop on a thread of its own, and a thread that renders pages.

A request has a deadline, however slowly it arrives. A new connection always gets a slot: if there is none, the oldest
one loses its slot. Connections that send and those that are answered have slots of their own. Probes do not wait for
pages.
"""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from horologe_common.service.log import logger

if TYPE_CHECKING:
    from collections.abc import Iterable

SLOTS = 64
"""Slots for connections that have not sent their requests, and as many for those that are answered."""
ACCEPT_ITERATIONS = 3
"""Iterations of the loop from the accept of a connection to its protocol."""
REQUEST_S, ANSWER_S = 2.0, 10.0
"""Timeouts of a request: from its connection to the end of its head, and from there until the answer is sent. Ten
seconds are the default timeout of a scrape."""
HEAD_BYTES = 16 << 10
CHUNK_BYTES = 64 << 10
"""A page is written in chunks, so that connections share its memory."""
BACKLOG = 1024
"""A connection beyond it waits for a second: its client sends its first packet again."""
END_OF_HEAD = re.compile(rb"\r?\n\r?\n")

log = logger("metrics")


class MetricsRequest(NamedTuple):
    """The parts of a request that matter. `path` is without the query."""

    path: str
    accept: str


class MetricsAnswer(NamedTuple):
    """Body of an answer."""

    status: HTTPStatus
    content_type: str = "text/plain"
    body: bytes = b""


class Pages(Protocol):
    """Answers requests."""

    def probe(self, request: MetricsRequest) -> MetricsAnswer | None:
        """Return the answer to a probe at once; None for another request. Called on the thread of the loop."""

    def page_format(self, request: MetricsRequest) -> str:
        """Return the name of a page. Requests with equal names may share a page."""

    def render(self, request: MetricsRequest) -> MetricsAnswer:
        """Return a page. Called on the thread of pages."""


class MetricsServer:
    """Listens at once, and serves after `start` until `stop`. Raises OSError if the address is not available."""

    def __init__(
        self, address: tuple[str, int], pages: Pages, request_s: float = REQUEST_S, answer_s: float = ANSWER_S
    ) -> None:
        host = address[0].strip("[]")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, address[1]), family=family)
        self.server_address: tuple[str, int] = self._listener.getsockname()[:2]
        self.server_port = self.server_address[1]
        self.request_s, self.answer_s = request_s, answer_s
        self._pages = pages
        self._loop = asyncio.new_event_loop()
        self._stopped = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._renderer = ThreadPoolExecutor(1, "metrics page")
        self._waiting: dict[str, asyncio.Future[MetricsAnswer]] = {}
        """Pages that wait for the renderer, by name. Later requests share them."""
        self.senders, self.readers = Slots(), Slots()
        self._answering: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Close all connections and free the port."""
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # it cancels all tasks at the end
            runner.run(self._serve())
        self._renderer.shutdown(wait=False, cancel_futures=True)

    async def _serve(self) -> None:
        server = await self._loop.create_server(lambda: MetricsConnection(self), sock=self._listener, backlog=BACKLOG)
        await self._stopped.wait()
        self._loop.remove_reader(self._listener)
        for _ in range(ACCEPT_ITERATIONS):  # `close` would drop connections that are accepted already
            await asyncio.sleep(0)
        server.close()
        for connection in [*self.senders, *self.readers]:
            connection.abort()

    def handle_request(self, connection: MetricsConnection, request: MetricsRequest) -> None:
        """Answer a probe at once, and another request when its page is rendered."""
        if (answer := self._pages.probe(request)) is not None:
            connection.send_answer(answer)
            return
        task = self._loop.create_task(self._send_page(connection, request))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _send_page(self, connection: MetricsConnection, request: MetricsRequest) -> None:
        try:
            answer = await asyncio.shield(self._find_page(request))
        except Exception:
            log.exception("page not rendered", path=request.path)
            answer = MetricsAnswer(HTTPStatus.INTERNAL_SERVER_ERROR)
        connection.send_answer(answer)

    def _find_page(self, request: MetricsRequest) -> asyncio.Future[MetricsAnswer]:
        """Return a page that is not yet being rendered. Raises RuntimeError if there is no thread for it."""
        name = self._pages.page_format(request)
        if name not in self._waiting:
            self._waiting[name] = self._loop.run_in_executor(self._renderer, self._render, name, request)
        return self._waiting[name]

    def _render(self, name: str, request: MetricsRequest) -> MetricsAnswer:
        self._loop.call_soon_threadsafe(self._waiting.pop, name, None)
        return self._pages.render(request)


class Slots(dict["MetricsConnection", None]):
    """Connections, oldest first."""

    def add(self, connection: MetricsConnection) -> None:
        """Give the connection a slot, if necessary that of the oldest one, which is closed."""
        if len(self) >= SLOTS:
            next(iter(self)).abort()
        self[connection] = None


class MetricsConnection(asyncio.Protocol):
    """One connection with one request."""

    def __init__(self, server: MetricsServer) -> None:
        self._has_request = False
        """The head of the request is complete."""
        self._server = server
        self._head = b""
        self._is_head_request = False
        self._rest = memoryview(b"")
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._expiry = asyncio.get_running_loop().call_later(self._server.request_s, self.abort)
        self._server.senders.add(self)

    def data_received(self, data: bytes) -> None:
        if self._has_request:
            return
        self._head += data
        if len(self._head) > HEAD_BYTES:
            self._begin_answer()
            self.send_answer(MetricsAnswer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))
        elif END_OF_HEAD.search(self._head):
            self._begin_answer()
            first, *headers = self._head.decode("latin-1").splitlines()
            parts = first.split()
            self._is_head_request = first.startswith("HEAD ")
            if len(parts) != 3:
                self.send_answer(MetricsAnswer(HTTPStatus.BAD_REQUEST))
            else:
                request = MetricsRequest(parts[1].partition("?")[0], _find_header(headers, "accept"))
                self._server.handle_request(self, request)

    def _begin_answer(self) -> None:
        self._has_request = True
        self._leave_slots()
        self._server.readers.add(self)
        self._expiry.cancel()
        self._expiry = asyncio.get_running_loop().call_later(self._server.answer_s, self.abort)

    def send_answer(self, answer: MetricsAnswer) -> None:
        """Send the answer, then close the connection. Do nothing if it has been closed meanwhile."""
        if self._transport.is_closing():
            return
        status, content_type, body = answer
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nDate: {formatdate(usegmt=True)}\r\n"
            f"Content-Type: {content_type}\r\nVary: Accept\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self._transport.write(head.encode("latin-1"))
        self._rest = memoryview(b"" if self._is_head_request else body)
        self._write_rest()

    def _write_rest(self) -> None:
        while self._rest and not self._paused and not self._transport.is_closing():
            self._transport.write(self._rest[:CHUNK_BYTES])
            self._rest = self._rest[CHUNK_BYTES:]
        if not self._rest:
            self._transport.close()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        asyncio.get_running_loop().call_soon(self._write_rest)  # a transport cannot be closed from within this call

    def eof_received(self) -> bool:
        """Keep the connection of a client that has sent its request and nothing more."""
        return self._has_request

    def connection_lost(self, error: Exception | None) -> None:
        self._expiry.cancel()
        self._leave_slots()

    def _leave_slots(self) -> None:
        for slots in (self._server.senders, self._server.readers):
            slots.pop(self, None)

    def abort(self) -> None:
        """Close the connection without an answer."""
        self._leave_slots()
        self._transport.abort()


def _find_header(headers: Iterable[str], name: str) -> str:
    """Return the values of a header, separated by commas; empty if it is not there."""
    parts = (header.partition(":") for header in headers)
    return ", ".join(value.strip() for key, _, value in parts if key.strip().lower() == name)
