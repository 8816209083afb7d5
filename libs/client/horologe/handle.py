"""A request of the blocking client."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from horologe_common.status import Cancelled

if TYPE_CHECKING:
    from horologe.transport.blocking_link import BlockingLink


class Handle:
    """A submitted request. It belongs to the thread that submitted it."""

    __slots__ = ("_done", "_error", "_link", "_result", "request_id")

    def __init__(self, link: BlockingLink) -> None:
        self._link = link
        self._done = False
        self._error: BaseException | None = None
        self._result: Any = None
        self.request_id = 0

    def done(self) -> bool:
        """Return whether the answer was read. Only `result` and other calls of the client read answers."""
        return self._done

    def result(self) -> Any:
        """Wait for the `Reply`, at most until deadline and grace. Raises what `Client.predict` does."""
        if not self._done:
            with self._link.lock:
                self._link.wait(self)
        if self._error is not None:
            raise self._error
        return self._result

    def cancel(self) -> bool:
        """Cancel the request, also at the server. Return False if it has ended."""
        with self._link.lock:
            if self._done:
                return False
            self._link.session.cancel(self.request_id)
            self.set_exception(Cancelled("cancelled by the caller"))
            self._link.post(time.monotonic_ns())
            return True

    def set_result(self, result: Any, /) -> None:
        self._done, self._result = True, result

    def set_exception(self, exception: BaseException, /) -> None:
        self._done, self._error = True, exception
