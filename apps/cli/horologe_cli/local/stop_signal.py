"""Being told to stop: ^C, a service manager's SIGTERM, a closed terminal."""

from __future__ import annotations

import os
import signal
import time

POLL_S = 0.1
"""The kernel may give a signal to any thread, and Python handles it only when the main thread next runs: one that
waits without an end would never hear of it."""

ONE_S = 0.5
"""Some senders tell the process and then its group: that is one request to stop, not two."""


class StopSignal:
    """Set by the first SIGINT, SIGTERM or SIGHUP. The second ends this process, and its children with it."""

    def __init__(self) -> None:
        self._requested_s: float | None = None

    def install_handlers(self) -> StopSignal:
        """Install the handlers. From the main thread."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        return self

    def is_set(self) -> bool:
        return self._requested_s is not None

    def wait(self) -> None:
        while self._requested_s is None:
            time.sleep(POLL_S)

    def _on_signal(self, number: int, _: object) -> None:
        """No lock here: the code that it interrupts may hold it."""
        now_s = time.monotonic()
        if self._requested_s is None:
            self._requested_s = now_s
        elif now_s > self._requested_s + ONE_S:
            os._exit(128 + number)
