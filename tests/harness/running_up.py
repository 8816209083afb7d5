"""Runs `horologe up` as a process, and other commands against it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import cached_property
from typing import TYPE_CHECKING, Any

from harness.command_line import run_horologe
from harness.http_calls import infer, send_http

if TYPE_CHECKING:
    from pathlib import Path

HOROLOGE = [sys.executable, "-m", "horologe_cli.main"]
ADDRESSES = {
    "--http": "127.0.0.1:0",
    "--grpc": "127.0.0.1:0",
    "--client": "tcp://127.0.0.1:0",
    "--metrics": "127.0.0.1:0",
}


class Up:
    """A `horologe up`, on free ports by default, with one worker."""

    def __init__(self, folder: Path, *options: str, **variables: str) -> None:
        self.folder = folder
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("HOROLOGE_")}
        self.env = inherited | variables
        self.log = (folder / "log").open("w+")
        addresses = [word for pair in ADDRESSES.items() if pair[0] not in options for word in pair]
        command = [*HOROLOGE, "up", "--workers", "1", "--json", *addresses, *options]
        self.process = subprocess.Popen(
            command, cwd=folder, env=self.env, stdout=subprocess.PIPE, stderr=self.log, text=True
        )

    @cached_property
    def ready(self) -> dict[str, Any]:
        """Wait until it is ready. Return the JSON document that it prints then."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.read_log()
        return dict(json.loads(line))

    def ask(self, command: str, *arguments: str, code: int = 0) -> Any:
        """Run a `horologe` command. Return its JSON, or its standard error if `code` is not 0."""
        full = (command, *arguments, "--json", "--endpoint", self.ready["clients"][0])
        result = run_horologe(*full, cwd=self.folder)
        assert result.exit_code == code, (result.stderr, self.read_log())
        return result.stderr if code else json.loads(result.stdout)

    def get(self, url: str) -> tuple[int, bytes]:
        return send_http("GET", url)

    def infer(self, model: str, *arguments: Any, **parameters: Any) -> tuple[int, Any]:
        """Return the status of an inference request over HTTP, and the data of the first output or the error."""
        return infer(self.ready["http"], model, *arguments, **parameters)

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
