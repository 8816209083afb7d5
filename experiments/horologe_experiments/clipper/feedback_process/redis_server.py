"""A Redis server for one measurement, with the durability settings of docker-compose.yml."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import subprocess
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

START_S = 10.0


class RedisServer:
    """A context manager that starts Redis if the store is `redis`. `missing`: Redis is needed but not installed.

    It must answer within `start_s` seconds.
    """

    def __init__(self, store: str, folder: Path, start_s: float = START_S) -> None:
        self._folder = folder
        self._start_s = start_s
        self._process: subprocess.Popen[bytes] | None = None
        self._needed = store == "redis"
        self.url = f"unix://{folder / 'redis.sock'}"
        installed = shutil.which("redis-server") and importlib.util.find_spec("redis")
        self.missing = self._needed and not installed

    def __enter__(self) -> RedisServer:
        if self._needed and not self.missing:
            self._process = subprocess.Popen(
                [
                    "redis-server",
                    "--dir",
                    str(self._folder),
                    "--port",
                    "0",
                    "--unixsocket",
                    str(self._folder / "redis.sock"),
                    "--appendonly",
                    "yes",
                    "--appendfsync",
                    "always",
                    "--save",
                    "",
                ],
                stdout=subprocess.DEVNULL,
            )
            try:
                self._wait_until_ready()
            except BaseException:
                self._stop()
                raise
        return self

    def _wait_until_ready(self) -> None:
        import redis

        until = time.monotonic() + self._start_s
        with redis.Redis.from_url(self.url) as client:
            while time.monotonic() < until:
                with contextlib.suppress(redis.exceptions.RedisError):
                    client.ping()
                    return
                time.sleep(0.02)
        raise RuntimeError("redis-server does not answer")

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()
