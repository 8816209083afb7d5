"""Items of a stream that have arrived and that the caller has not taken: the sink of its request."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from horologe_common.wire import STREAM_WINDOW

if TYPE_CHECKING:
    from horologe.core.reply import Reply

REPORT_ITEMS = STREAM_WINDOW // 2
"""Items that are taken before the server gets a report."""


class ItemBuffer:
    """The items in their order, then the end of the stream: by itself, or by an error.

    A stream ends once. The server sends at most `STREAM_WINDOW` items beyond the reported ones.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.request_id = 0
        self._items: deque[Reply] = deque()
        self._done = False
        self._taken = 0
        self._reported = 0

    def add_item(self, item: Reply) -> None:
        self._items.append(item)

    def done(self) -> bool:
        """Return whether the stream has ended. Items may be left."""
        return self._done

    def is_readable(self) -> bool:
        """Return whether an item or the end has arrived."""
        return self._done or bool(self._items)

    def set_result(self, result: Any, /) -> None:
        """End the stream. Its last item may be in the answer itself."""
        if result is not None and result.outputs:
            self._items.append(result)
        self._done = True

    def set_exception(self, exception: BaseException, /) -> None:
        self._done, self.error = True, exception

    def pop_item(self) -> Reply | None:
        """Return the next item, or None at the end of the stream. Raises its error after the last item."""
        if self._items:
            self._taken += 1
            return self._items.popleft()
        if self.error is not None:
            raise self.error
        return None

    def pop_report(self) -> int:
        """Return how many items were taken so far if it is time to report that, else 0."""
        if self._done or self._taken - self._reported < REPORT_ITEMS:
            return 0
        self._reported = self._taken
        return self._taken
