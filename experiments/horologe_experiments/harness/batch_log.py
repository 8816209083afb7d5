"""The batches of a lean run, one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from horologe_common.wire import Infer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from horologe_common.wire import Result


class Batches:
    """`watch` is told of every action that has ended, as `Lean` has it."""

    def __init__(self) -> None:
        self._ended: list[tuple[int, int, int]] = []

    def watch(self, device: Any, action: Any, result: Result, promised_ns: int) -> None:
        if isinstance(action, Infer):
            self._ended.append((result.end_ns, len(action.rows), result.device_ns))

    def between(self, from_ns: int, until_ns: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Requests of each batch that ended in this time of the devices, and the ms that it took."""
        found = [(requests, took_ns) for end_ns, requests, took_ns in self._ended if from_ns <= end_ns < until_ns]
        table = np.array(found, np.int64).reshape(-1, 2)
        return table[:, 0], table[:, 1] / 1e6
