"""Servers as child processes: start, wait until ready, stop with all their children."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
import urllib.request
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

PORTS = range(20_000, 32_000)
"""Below the range that Linux takes ports of connections from, 32768 to 60999. One of those may be taken between the
choice of the port and the start of its server."""


def free_port() -> int:
    """Return a TCP port that was free a moment ago. The kernel does not give such ports to connections."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Server:
    """A child in its own process group, as a context manager. Its output goes to `log`."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self._command = list(command)
        self._environment = {**os.environ, **(environment or {})}
        self.log = log
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Server:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as out:
            self._child = subprocess.Popen(
                self._command, stdout=out, stderr=out, env=self._environment, start_new_session=True
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is None:
            return
        processes = self.processes()
        self._child.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(8)
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()
        self._child.wait(5)

    def processes(self) -> list[psutil.Process]:
        """Return the child and its descendants."""
        assert self._child is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            top = psutil.Process(self._child.pid)
            return [top, *top.children(recursive=True)]
        return []

    def wait(self, is_ready: Callable[[], bool], seconds: float) -> None:
        """Return once `is_ready()`. Raises `RuntimeError` with the end of the log on exit or timeout."""
        assert self._child is not None
        end = time.monotonic() + seconds
        while time.monotonic() < end and self._child.poll() is None:
            if is_ready():
                return
            time.sleep(0.1)
        state = "ended" if self._child.poll() is not None else f"was not ready after {seconds:.0f} s"
        tail = self.log.read_text(errors="replace")[-2000:]
        raise RuntimeError(f"{' '.join(self._command)}: {state}\n{tail}")


def answers(url: str) -> Callable[[], bool]:
    """Return a check: True when a GET of `url` is answered with 200."""

    def is_ready() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    return is_ready


def accepts(port: int, request: bytes) -> Callable[[], bool]:
    """Return a check: True when this HTTP request is answered with 200."""

    def is_ready() -> bool:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
                connection.sendall(request)
                return connection.recv(64)[9:12] == b"200"
        except OSError:
            return False

    return is_ready


def listens(port: int) -> Callable[[], bool]:
    """Return a check: True when the port accepts connections."""

    def is_ready() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    return is_ready
