"""A server whose answers have no end, or come slowly."""

from __future__ import annotations

import gzip
import socket
import threading
from contextlib import suppress
from itertools import repeat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
BLOCK = b" " * (1 << 16)
CHUNK = b"10000\r\n" + BLOCK + b"\r\n"
BOMB = gzip.compress(b" " * (64 << 20))
ENDLESS = {
    "chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", CHUNK),
    "no length": (HEAD + b"Connection: close\r\n\r\n", BLOCK),
    "a huge length": (HEAD + b"Content-Length: 1000000000000\r\n\r\n", BLOCK),
    "an endless chunk": (HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffffff\r\n", BLOCK),
    "an error": (HEAD.replace(b"200 OK", b"400 Bad Request") + b"Connection: close\r\n\r\n", BLOCK),
    "members of gzip": (HEAD + b"Content-Encoding: gzip\r\n\r\n", BOMB),
    "headers": (HEAD, b"a: " + b"b" * 1_000 + b"\r\n"),
    "a status line": (b"HTTP/1.1 200 ", BLOCK),
}
"""What is sent first, and then again and again."""
PAUSE_S = 0.02


class EndlessServer:
    """Answers every connection with `first`, and then with `more` until the client leaves. `sent` counts bytes."""

    def __init__(self, first: bytes, more: bytes, slow: bool = False) -> None:
        self._first = first
        self._more: Iterable[bytes] = repeat(more)
        self._slow = slow
        self._stopped = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.left = threading.Semaphore(0)
        """Released when a client has left."""

    def __enter__(self) -> EndlessServer:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while not self._stopped.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(1 << 16)
            connection.sendall(self._first)
            for part in self._more:
                if self._stopped.wait(PAUSE_S if self._slow else 0):
                    break
                connection.sendall(part)
        self.left.release()
