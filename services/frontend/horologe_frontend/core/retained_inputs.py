"""Staged inputs of answered requests that the selector may still have shipped to a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.core.indexed_heap import Timers

if TYPE_CHECKING:
    from horologe_common.core.staging import StagedInputs


class RetainedInputs:
    """Inputs by id, with the selector that will release them. Without a Release, they are freed by a timeout.

    Invariant: each retained input has one timer.
    """

    def __init__(self, staging: StagedInputs) -> None:
        self.timers = Timers()
        self._staging = staging
        self._selectors: dict[int, str] = {}

    def __contains__(self, input_id: int) -> bool:
        return input_id in self._selectors

    def retain(self, input_id: int, selector: str, until_ns: int) -> None:
        """Keep staged inputs until this selector releases them or disconnects, or until `until_ns`."""
        self._selectors[input_id] = selector
        self.timers.arm(input_id, until_ns)

    def release(self, input_id: int, selector: str) -> None:
        """Free inputs that this selector does not need any longer, whether they are retained or only staged."""
        if self._selectors.get(input_id, selector) != selector:
            return
        if self._selectors.pop(input_id, None) is not None:
            self.timers.cancel(input_id)
        self._staging.release(input_id)

    def release_selector(self, selector: str) -> None:
        """Free the inputs that were retained for a selector that has disconnected."""
        for input_id in [key for key, owner in self._selectors.items() if owner == selector]:
            self.release(input_id, selector)

    def release_expired(self, now_ns: int) -> None:
        """Free the inputs whose timeout has passed."""
        for input_id in self.timers.pop_expired(now_ns):
            del self._selectors[input_id]
            self._staging.release(input_id)

    def check(self) -> None:
        assert len(self.timers) == len(self._selectors)
        self.timers.check()
