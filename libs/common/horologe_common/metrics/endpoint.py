"""The HTTP endpoint of a process for metrics and probes: a loop on a thread, and a thread that renders pages.

A request has a deadline, however slowly it arrives. A new connection always gets a slot: if there is none, the oldest
one loses its slot. Connections that send and those that are answered have slots of their own. Probes do not wait for
pages.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec

from horologe_common.metrics.metrics_pages import MetricsAnswer, MetricsPages, MetricsRequest
from horologe_common.service.log import logger
from horologe_common.service.settings import SettingsError
from horologe_common.status import describe_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from horologe_common.core.instruments import Stats

SLOTS = 64
"""Slots for connections that have not sent their requests, and as many for those that are answered."""
ACCEPT_ITERATIONS = 4
"""Iterations of the loop from the accept of a connection to its slot."""
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


class MetricsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The endpoint for Prometheus."""

    bind: str = "127.0.0.1:8002"
    """host:port of /metrics, /health and /ready. Empty: off."""


def serve_metrics(
    settings: MetricsSettings, stats: Callable[[], Iterable[Stats]], ready: Callable[[], bool]
) -> MetricsServer | None:
    """Serve the pages on threads. Return the server, or None if it is off.

    Raises `SettingsError` if the address cannot be bound.
    """
    if not settings.bind:
        return None
    host, _, port = settings.bind.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise SettingsError(f"setting metrics.bind: got {settings.bind!r}, wanted HOST:PORT")
    try:
        return MetricsServer(host.strip("[]"), int(port), MetricsPages(stats, ready))
    except (OSError, ValueError) as error:
        wanted = f"wanted a free address: {describe_error(error)}"
        raise SettingsError(f"setting metrics.bind: got {settings.bind}, {wanted}") from error


class Slots(dict[asyncio.StreamWriter, None]):
    """Connections, oldest first."""

    @contextlib.contextmanager
    def hold(self, connection: asyncio.StreamWriter) -> Iterator[None]:
        """Give the connection a slot, if necessary that of the oldest one, which is closed."""
        if len(self) >= SLOTS:
            oldest = next(iter(self))
            del self[oldest]
            oldest.transport.abort()
        self[connection] = None
        try:
            yield
        finally:
            self.pop(connection, None)


class MetricsServer:
    """Serves pages until `stop`. Raises OSError if the address is not available."""

    def __init__(self, host: str, port: int, pages: MetricsPages) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family)
        self.port: int = self._listener.getsockname()[1]
        self.request_s, self.answer_s = REQUEST_S, ANSWER_S
        self.senders, self.readers = Slots(), Slots()
        self._pages = pages
        self._loop = asyncio.new_event_loop()
        self._stopped = asyncio.Event()
        self._renderer = ThreadPoolExecutor(1, "metrics page")
        self._waiting: dict[tuple[str, bool], asyncio.Future[MetricsAnswer]] = {}
        """Pages that wait for the renderer, by name. Later requests share them."""
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
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
        server = await asyncio.start_server(self._on_connected, sock=self._listener, backlog=BACKLOG, limit=HEAD_BYTES)
        await self._stopped.wait()
        self._loop.remove_reader(self._listener)
        for _ in range(ACCEPT_ITERATIONS):  # `close` would drop connections that are accepted already
            await asyncio.sleep(0)
        server.close()
        for connection in [*self.senders, *self.readers]:
            connection.transport.abort()

    async def _on_connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, and close the connection. TimeoutError and lost connections are OSErrors."""
        try:
            with self.senders.hold(writer):
                async with asyncio.timeout(self.request_s):
                    head = await _read_head(reader)
            with self.readers.hold(writer):
                async with asyncio.timeout(self.answer_s):
                    await _send(writer, await self._answer(head), has_body=not head.startswith(b"HEAD "))
        except (OSError, EOFError):
            pass
        finally:
            writer.transport.abort()

    async def _answer(self, head: bytes) -> MetricsAnswer:
        """Answer a probe at once, and another request when its page is rendered."""
        if len(head) > HEAD_BYTES:
            return MetricsAnswer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        first, *headers = head.decode("latin-1").splitlines()
        parts = first.split()
        if len(parts) != 3:
            return MetricsAnswer(HTTPStatus.BAD_REQUEST)
        request = MetricsRequest(parts[1].partition("?")[0], _find_header(headers, "accept"))
        if (answer := self._pages.probe(request)) is not None:
            return answer
        try:
            return await asyncio.shield(self._find_page(self._pages.page_name(request)))
        except Exception:
            log.exception("page not rendered", path=request.path)
            return MetricsAnswer(HTTPStatus.INTERNAL_SERVER_ERROR)

    def _find_page(self, name: tuple[str, bool]) -> asyncio.Future[MetricsAnswer]:
        """Return a page that is not yet being rendered. Raises RuntimeError if there is no thread for it."""
        if name not in self._waiting:
            self._waiting[name] = self._loop.run_in_executor(self._renderer, self._render, name)
        return self._waiting[name]

    def _render(self, name: tuple[str, bool]) -> MetricsAnswer:
        self._loop.call_soon_threadsafe(self._waiting.pop, name, None)
        return self._pages.render(*name)


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    """Return a request up to the end of its head, or more than `HEAD_BYTES` of it. Raises EOFError."""
    head = b""
    while len(head) <= HEAD_BYTES and not END_OF_HEAD.search(head):
        if not (part := await reader.read(HEAD_BYTES)):
            raise EOFError
        head += part
    return head


async def _send(writer: asyncio.StreamWriter, answer: MetricsAnswer, *, has_body: bool) -> None:
    """Send the answer, and wait until the client has it."""
    status, content_type, body = answer
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nDate: {formatdate(usegmt=True)}\r\n"
        f"Content-Type: {content_type}\r\nVary: Accept\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode("latin-1"))
    view = memoryview(body if has_body else b"")
    for begin in range(0, len(view), CHUNK_BYTES):
        writer.write(view[begin : begin + CHUNK_BYTES])
        await writer.drain()
    writer.close()
    await writer.wait_closed()


def _find_header(headers: Iterable[str], name: str) -> str:
    """Return the values of a header, separated by commas; empty if it is not there."""
    parts = (header.partition(":") for header in headers)
    return ", ".join(value.strip() for key, _, value in parts if key.strip().lower() == name)
