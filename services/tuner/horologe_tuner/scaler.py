"""Interface of a scaler: it starts and drains workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from horologe_common.status import HorologeError, Status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_common.wanted_shares import WantedShare


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
