"""Resident memory of processes over time, and its slope."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import psutil

if TYPE_CHECKING:
    from bench.process import Server


class Watch:
    """Samples the resident size of every process of a server from a thread, as a context manager."""

    def __init__(self, server: Server, every_s: float = 1.0) -> None:
        self._server, self._every_s = server, every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.names: dict[int, str] = {}
        self.samples: dict[int, list[tuple[float, float]]] = {}
        """By process id: seconds and MB."""

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        processes = self._server.processes()
        for process in processes:
            with contextlib.suppress(psutil.Error):
                self.names[process.pid] = " ".join(process.cmdline()[1:4])
        while not self._stop.wait(self._every_s):
            for process in processes:
                with contextlib.suppress(psutil.Error):
                    at = (time.monotonic(), process.memory_info().rss / 1e6)
                    self.samples.setdefault(process.pid, []).append(at)

    def slopes(self) -> dict[str, float]:
        """MB per minute of every process, by `pid command`."""
        return {f"{pid} {self.names.get(pid, '')}".strip(): slope(rows) for pid, rows in self.samples.items()}


def slope(samples: list[tuple[float, float]]) -> float:
    """Least-squares slope of (seconds, MB), in MB per minute; 0 of fewer than two samples."""
    if len(samples) < 2:
        return 0.0
    at, size = np.array(samples).T
    return float(np.polyfit(at - at[0], size, 1)[0]) * 60
