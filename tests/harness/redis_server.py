"""A real Redis server for tests, on its own Unix socket, with the durability settings of the compose file."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

START_S = 10


class RedisServer:
    """A Redis server that tests may stop and start repeatedly. Acknowledged writes survive."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"unix://{folder / 'redis.sock'}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        import redis

        options = {"--dir": self.folder, "--port": 0, "--unixsocket": self.folder / "redis.sock", "--save": ""}
        durable = {"--appendonly": "yes", "--appendfsync": "always", "--logfile": "redis.log"}
        words = [str(word) for option in (options | durable).items() for word in option]
        self._process = process = subprocess.Popen(["redis-server", *words], stdout=subprocess.DEVNULL)
        with redis.Redis.from_url(self.url) as client:

            def answers() -> bool:
                assert process.poll() is None, (self.folder / "redis.log").read_text()
                return bool(client.ping())

            until(answers, START_S, (redis.exceptions.RedisError,))

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
