"""Staged inputs of answered requests that the selector may still have shipped to a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_common.clock import s
from horologe_common.core.indexed_heap import IndexedHeap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.core.staging import StagedInputs
    from horologe_common.wire import Release
    from horologe_frontend.core.requests import ClientRequest, OpenRequests
RETAIN_INPUTS_NS = s(1)
"""Inputs of an answered request that its selector still needs are freed this long after the deadline at the latest."""


class RetainedInputs:
    """Inputs by id, with the selector that will release them. Without a Release, they are freed by a timeout.

    The timeout of a request's inputs is `RETAIN_INPUTS_NS` after its deadline.

    Invariant: each retained input has one timer.
    """

    def __init__(self, staging: StagedInputs, requests: OpenRequests) -> None:
        self.timers: IndexedHeap[Any, int] = IndexedHeap()
        self._staging = staging
        self._requests = requests
        self._selectors: dict[int, str] = {}

    def __contains__(self, input_id: int) -> bool:
        return input_id in self._selectors

    def retain(self, input_id: int, selector: str, until_ns: int) -> None:
        """Keep staged inputs until this selector releases them or disconnects, or until `until_ns`."""
        self._selectors[input_id] = selector
        self.timers.push(input_id, until_ns)

    def retain_request(self, request: ClientRequest) -> None:
        """Keep the inputs of an answered request, because its selector still needs them."""
        self.retain(request.id, request.receiver, request.deadline_ns + RETAIN_INPUTS_NS)

    def on_release(self, now_ns: int, selector: str, message: Release, buffers: Sequence[Buffer]) -> None:
        """Free inputs, unless their request was sent again to another selector, which may still need them."""
        for input_id in message.ids:
            request = self._requests.find_request(input_id)
            if request is None or request.receiver == selector:
                self.release(input_id, selector)

    def release(self, input_id: int, selector: str) -> None:
        """Free inputs that this selector does not need any longer, whether they are retained or only staged."""
        if self._selectors.get(input_id, selector) != selector:
            return
        if self._selectors.pop(input_id, None) is not None:
            self.timers.remove(input_id)
        self._staging.release(input_id)

    def release_selector(self, selector: str) -> None:
        """Free the inputs that were retained for a selector that has disconnected."""
        for input_id in [key for key, owner in self._selectors.items() if owner == selector]:
            self.release(input_id, selector)

    def release_expired(self, now_ns: int) -> None:
        """Free the inputs whose timeout has passed."""
        for input_id in self.timers.pop_up_to(now_ns):
            del self._selectors[input_id]
            self._staging.release(input_id)

    def check(self) -> None:
        assert len(self.timers) == len(self._selectors)
        self.timers.check()
