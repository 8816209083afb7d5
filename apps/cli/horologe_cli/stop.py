"""Being told to stop: ^C, a service manager's SIGTERM, a closed terminal."""

from __future__ import annotations

import os
import signal
import threading


def stop_event() -> threading.Event:
    """Set by the first SIGINT, SIGTERM or SIGHUP; the second ends this process, and its children with it."""
    stop = threading.Event()

    def told(number: int, _: object) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, told)
    return stop
