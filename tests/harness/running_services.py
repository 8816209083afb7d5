"""The whole system as processes, for tests that look into them and kill them."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any, Self

from harness.waiting import until
from horologe_cli.local.local_system import LocalSystem
from horologe_cli.local.topology import SystemOptions

if TYPE_CHECKING:
    from pathlib import Path

READY_S = 60
STATES = ("worker.cache", "selector.state", "profiler.state", "tuner.state", "controller.state")
"""Settings of the folders to which services write."""


class RunningServices(LocalSystem):
    """Serves the models in `folder`/models until the end of the block. No core may have a fault meanwhile.

    `options`: those of SystemOptions. By default: an edge and a worker.
    """

    def __init__(self, folder: Path, *sets: str, **options: Any) -> None:
        self.endpoint = f"ipc://{folder}/clients"
        self.lines: list[str] = []
        """Log lines of all processes."""
        given: dict[str, Any] = {"workers": 1, "http": "127.0.0.1:0", "metrics": "off"} | options
        sets = (*(f"{name}={folder}/{name}" for name in STATES), *sets)
        super().__init__(
            SystemOptions(str(folder / "models"), clients=(self.endpoint,), sets=sets, **given),
            lambda name, line: self.lines.append(f"{name}: {line}"),
        )

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self.wait_ready(READY_S)
        except BaseException:
            super().__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        assert not [line for line in self.lines if " fault" in line]

    def pid(self, name: str) -> int:
        """Return the id of a process, once it runs."""
        return until(lambda: self.supervisor.pids().get(name, 0))

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.pid(name), number)
