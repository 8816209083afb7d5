"""Interface of a scaler, which starts and drains workers, and what all scalers have in common."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol

from horologe_common.service.settings import SettingsError
from horologe_common.status import HorologeError, Status
from horologe_tuner.core.worker_scaling import Scaled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from horologe_common.wanted_shares import WantedShare
    from horologe_tuner.core.worker_scaling import ScaleTo


class ScalingError(HorologeError):
    """Workers could not be counted, started or stopped. The tuner tries again."""

    status = Status.FAILED


class Scaler(Protocol):
    """Sets the number of workers of each hardware type. Calls may block for seconds and run on a thread of their own.

    Workers are stopped by SIGTERM: they finish their actions, and the controller plans nothing more for them.
    """

    def count_workers(self, hardware: tuple[str, ...]) -> Mapping[str, int]:
        """Return how many workers of these types run or are starting. Raises ScalingError."""

    def set_workers(self, hardware: str, count: int) -> None:
        """Start or drain workers of a type until `count` run. Raises ScalingError."""

    def set_shares(self, wanted: Sequence[WantedShare]) -> tuple[str, ...]:
        """Start the workers of the shares that do not run, then drain the workers of other shares.

        Return the names of the workers of shares that run or are starting. Shares do not count as workers of their
        hardware type. Raises ScalingError, and changes nothing, if the shares of a device do not add up. Raises it
        after all other changes if the last worker of a wanted name has not ended yet.
        """


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


class ScalerThread(threading.Thread):
    """Carries out one call of the tuner after another, and ends with the process.

    `post` is called on this thread with the result of each call.
    """

    def __init__(self, scaler: Scaler, post: Callable[[Scaled], None]) -> None:
        super().__init__(name="scaler", daemon=True)
        self._scaler, self._post = scaler, post
        self._calls: SimpleQueue[ScaleTo] = SimpleQueue()

    def call(self, message: ScaleTo) -> None:
        """Queue a call."""
        self._calls.put(message)

    def run(self) -> None:
        """Carry out all calls."""
        while True:
            self._post(scale(self._scaler, self._calls.get()))


ANY = "*"


class WorkerNames:
    """The setting `tuner.scaler_names`: the compose service, Swarm service or Deployment of each hardware type.

    Raises SettingsError for an entry that is not `HARDWARE=NAME`.
    """

    def __init__(self, entries: tuple[str, ...]) -> None:
        self._names: dict[str, str] = {}
        for entry in entries:
            hardware, equals, name = entry.partition("=")
            if not (hardware and equals and name):
                raise SettingsError(f"setting tuner.scaler_names: got {entry!r}, wanted HARDWARE=NAME")
            self._names[hardware] = name

    def find_name(self, hardware: str) -> str:
        """Return the name for a hardware type. Raises SettingsError if none is set."""
        if (name := self._names.get(hardware) or self._names.get(ANY)) is None:
            wanted = ", ".join(self._names)
            raise SettingsError(f"setting tuner.scaler_names: no name for hardware {hardware!r}, only for {wanted}")
        return name.replace(ANY, hardware)
