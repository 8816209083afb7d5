"""Staged inputs that no open request holds any more, while the selector may still have them shipped. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.core.timers import Timers

if TYPE_CHECKING:
    from horologe_common.core.staging import StagedInputs


class Lingering:
    """Inputs by id with the selector that will release them; without it they go when their time is up.

    Law: whatever lingers has one timer.
    """

    def __init__(self, staging: StagedInputs) -> None:
        self.deadlines = Timers()
        self._staging = staging
        self._selectors: dict[int, str] = {}

    def __contains__(self, input_id: int) -> bool:
        return input_id in self._selectors

    def __len__(self) -> int:
        return len(self._selectors)

    def keep(self, input_id: int, selector: str, until_ns: int) -> None:
        """Keep inputs that are staged until this selector releases them, goes, or the time is up."""
        self._selectors[input_id] = selector
        self.deadlines.arm(input_id, until_ns)

    def release(self, input_id: int, selector: str) -> None:
        """This selector needs them no more; also where they do not linger (yet)."""
        if self._selectors.get(input_id, selector) != selector:
            return
        if self._selectors.pop(input_id, None) is not None:
            self.deadlines.cancel(input_id)
        self._staging.release(input_id)

    def gone(self, selector: str) -> None:
        for input_id in [key for key, who in self._selectors.items() if who == selector]:
            self.release(input_id, selector)

    def tick(self, now_ns: int) -> None:
        """Free what nobody has released in time."""
        for input_id in self.deadlines.pop_expired(now_ns):
            del self._selectors[input_id]
            self._staging.release(input_id)

    def check(self) -> None:
        assert len(self.deadlines) == len(self._selectors)
        self.deadlines.check()
