"""An HTTP server of files for tests, with or without ranges, that can break connections and count what it sends."""

from __future__ import annotations

import hashlib
import re
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class FileServer(ThreadingHTTPServer):
    """Serves the folder `root`. A handler closes its connection after `break_after` bytes, `breaks` times."""

    daemon_threads = True

    def __init__(self, root: Path, ranges: bool) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.root, self.ranges = root, ranges
        self.breaks, self.break_after = 0, 0
        self.sends_whole = False
        """Send the whole file where a part was requested."""
        self.sent: list[tuple[str, int]] = []
        """Path and bytes of each answer to a GET of a file."""
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *arguments: Any) -> None:
        """Ignore clients that close their connection."""


class Handler(SimpleHTTPRequestHandler):
    server: FileServer

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments, directory=str(arguments[2].root))

    def log_message(self, *arguments: Any) -> None:
        """Log nothing."""

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        path = self.server.root / self.path.lstrip("/")
        if not path.is_file():
            (super().do_GET if body else super().do_HEAD)()
            return
        content, status, begin = path.read_bytes(), 200, 0
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        etag = f'"{hashlib.blake2b(content, digest_size=8).hexdigest()}"'
        if asked and self.server.ranges:
            status, begin = 206, int(asked[1])
            part = content[begin : int(asked[2]) + 1 if asked[2] else None]
        if status == 200 or self.server.sends_whole:
            part = content
        self.send_response(status)
        self.send_header("ETag", etag)
        self.send_header("Content-Length", str(len(part)))
        if self.server.ranges:
            self.send_header("Accept-Ranges", "bytes")
        if status == 206:
            self.send_header("Content-Range", f"bytes {begin}-{begin + len(part) - 1}/{len(content)}")
        self.end_headers()
        if not body:
            return
        if self.server.breaks and len(part) > self.server.break_after:
            self.server.breaks -= 1
            part, self.close_connection = part[: self.server.break_after], True
        if len(part) > 1:  # else a client asks whether the server sends parts
            self.server.sent.append((self.path, len(part)))
        self.wfile.write(part)


@contextmanager
def serve_files(root: Path, ranges: bool = True) -> Iterator[FileServer]:
    with FileServer(root, ranges) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
