"""Runs the scaler on a thread of its own: its calls may take seconds."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

from horologe_common.status import HorologeError
from horologe_tuner.core.worker_scaling import Scaled

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_tuner.core.worker_scaling import ScaleTo
    from horologe_tuner.scaler import Scaler


class ScalerThread:
    """Answers each ScaleTo with one Scaled. `post` is called on the thread."""

    def __init__(self, scaler: Scaler, post: Callable[[Scaled], None]) -> None:
        self._scaler = scaler
        self._post = post
        self._calls: SimpleQueue[ScaleTo] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="scaler", daemon=True)

    def start(self) -> None:
        """Start the thread. It ends with the process."""
        self._thread.start()

    def call(self, message: ScaleTo) -> None:
        """Have the scaler run these workers."""
        self._calls.put(message)

    def _run(self) -> None:
        while True:
            self._post(scale(self._scaler, self._calls.get()))


def scale(scaler: Scaler, message: ScaleTo) -> Scaled:
    """Set the workers of each hardware type that has another number, more before fewer, and then the shares."""
    wanted = message.workers
    hardware, running, errors = tuple(wanted), {}, []
    shares: tuple[str, ...] = ()
    try:
        running = dict(scaler.count_workers(hardware))
        for name in sorted(hardware, key=lambda name: running[name] - wanted[name]):
            if running[name] != wanted[name]:
                try:
                    scaler.set_workers(name, wanted[name])
                except HorologeError as error:
                    errors.append(error.reason)
        running = dict(scaler.count_workers(hardware))
        if message.shares is not None:
            shares = scaler.set_shares(message.shares)
    except HorologeError as error:
        errors.append(error.reason)
    except Exception as error:  # of a client library: the tuner must continue, and retry
        errors.append(f"{type(error).__name__}: {error}")
    return Scaled(running, "; ".join(dict.fromkeys(errors)), shares)
