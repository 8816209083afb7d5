"""A real Redis server for tests, on its own Unix socket, with the durability settings of the compose file."""

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
    """A Redis server that tests may stop and start repeatedly. Acknowledged writes survive."""

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
            for tries_left in reversed(range(TRIES)):
                try:
                    client.ping()
                    return
                except redis.exceptions.RedisError:
                    if not tries_left:
                        raise
                    self._wait_briefly()

    def _wait_briefly(self) -> None:
        """Wait 20 ms. Raises AssertionError with the server's log if the server has ended."""
        assert self._process
        try:
            self._process.wait(0.02)
        except subprocess.TimeoutExpired:
            return
        raise AssertionError((self.folder / "redis.log").read_text())

    def stop(self) -> None:
        """Kill the server with SIGKILL."""
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None


def a_redis() -> Iterator[RedisServer]:
    """Start a server; the body of a fixture. Skips the test if Redis is not installed."""
    if not shutil.which("redis-server"):
        pytest.skip("no redis-server: apt install redis-server")
    pytest.importorskip("redis", reason="no package redis: pip install 'horologe[redis]'")
    folder = Path(tempfile.mkdtemp(prefix="redis-"))  # a socket path has at most 107 characters
    server = RedisServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
