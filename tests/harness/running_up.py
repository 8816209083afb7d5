"""Runs `horologe up` as a process, and other commands against it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any

from harness.command_line import run_horologe

if TYPE_CHECKING:
    from pathlib import Path

HOROLOGE = [sys.executable, "-m", "horologe_cli.main"]


class Up:
    """A running `horologe up`. `ready`: the JSON document that it printed when it was ready."""

    def __init__(self, folder: Path, *options: str, **variables: str) -> None:
        self.folder = folder
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("HOROLOGE_")}
        self.env = inherited | variables
        self.log = (folder / "log").open("w+")
        free_ports = ["--http", "127.0.0.1:0", "--client", "tcp://127.0.0.1:0", "--metrics", "127.0.0.1:0"]
        command = [*HOROLOGE, "up", "--workers", "1", "--json", *free_ports, *options]
        self.process = subprocess.Popen(
            command, cwd=folder, env=self.env, stdout=subprocess.PIPE, stderr=self.log, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.read_log()
        self.ready: dict[str, Any] = json.loads(line)

    def ask(self, command: str, *arguments: str, code: int = 0) -> Any:
        """Run a `horologe` command. Return its JSON, or its standard error if `code` is not 0."""
        full = (command, *arguments, "--json", "--endpoint", self.ready["clients"][0])
        result = run_horologe(*full, cwd=self.folder)
        assert result.exit_code == code, (result.stderr, self.read_log())
        return result.stderr if code else json.loads(result.stdout)

    def get(self, url: str) -> tuple[int, bytes]:
        return self.http("GET", url)

    def http(self, method: str, url: str, body: bytes = b"") -> tuple[int, bytes]:
        return send_http(method, url, body)

    def read_log(self) -> str:
        self.log.seek(0)
        return self.log.read()

    def stop(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        code = self.process.wait(20)
        if self.process.stdout:
            self.process.stdout.close()
        self.log.close()
        return code


def send_http(method: str, url: str, body: bytes = b"") -> tuple[int, bytes]:
    """Return status and body of a response. Raises OSError if nothing listens."""
    host, _, path = url.removeprefix("http://").partition("/")
    connection = HTTPConnection(host, timeout=5)
    try:
        connection.request(method, f"/{path}", body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()
