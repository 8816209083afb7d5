"""A real Redis for tests, on a Unix socket of its own, as durable as compose has it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

TRIES = 200


class RedisServer:
    """`start` and `stop` as often as wanted: what it has acknowledged is there again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"unix://{folder / 'redis.sock'}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        import redis

        self._process = subprocess.Popen(
            [
                "redis-server",
                "--dir",
                str(self.folder),
                "--port",
                "0",
                "--unixsocket",
                str(self.folder / "redis.sock"),
                "--appendonly",
                "yes",
                "--appendfsync",
                "always",
                "--save",
                "",
                "--logfile",
                "redis.log",
            ],
            stdout=subprocess.DEVNULL,
        )
        with redis.Redis.from_url(self.url) as client:
            for left in reversed(range(TRIES)):
                try:
                    client.ping()
                    return
                except redis.exceptions.RedisError:
                    if not left:
                        raise
                    self._nap()

    def _nap(self) -> None:
        assert self._process
        try:
            self._process.wait(0.02)
        except subprocess.TimeoutExpired:
            return
        raise AssertionError((self.folder / "redis.log").read_text())

    def stop(self) -> None:
        """kill -9."""
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None


def a_redis() -> Iterator[RedisServer]:
    """Body of a fixture. Skips where there is no Redis to start."""
    if not shutil.which("redis-server"):
        pytest.skip("no redis-server: apt install redis-server")
    pytest.importorskip("redis", reason="no package redis: pip install 'horologe[redis]'")
    folder = Path(tempfile.mkdtemp(prefix="redis-"))  # short: the path of a socket has at most 107 characters
    server = RedisServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
