"""Messages that arrive twice or out of order: which announcements and calls still count. Pure."""

from __future__ import annotations

NOT_ANNOUNCED = "no controller has announced its models"
"""Why no model is known to a service that has just started."""


class AnnouncementOrder:
    """Accepts the announcements of connected senders, each with a larger number than the one before.

    An announcement that arrives twice, after a newer one, or after its sender has disconnected is rejected. A sender
    counts from 1. Number 0 is always accepted: senders of an earlier version do not count.
    """

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def connect(self, sender: str) -> None:
        self._last[sender] = 0

    def disconnect(self, sender: str) -> None:
        self._last.pop(sender, None)

    def accept(self, sender: str, number: int) -> bool:
        """Return whether the announcement is the newest of a connected sender."""
        if number == 0:
            return True
        last = self._last.get(sender)
        if last is None or number <= last:
            return False
        self._last[sender] = number
        return True


class RecentCalls:
    """The last calls that changed something, by sender and id, so that a call that arrives twice changes it once."""

    LIMIT = 1024

    def __init__(self) -> None:
        self._calls: dict[tuple[str, int], None] = {}

    def is_repeated(self, sender: str, call_id: int) -> bool:
        """Return whether the call has arrived before, and record it."""
        if (sender, call_id) in self._calls:
            return True
        self._calls[sender, call_id] = None
        if len(self._calls) > self.LIMIT:
            del self._calls[next(iter(self._calls))]
        return False
