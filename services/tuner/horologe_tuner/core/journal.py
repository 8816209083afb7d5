"""Journal of the tuner: an entry for each decision, for its status and for the log."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

JournalEvent: TypeAlias = Literal[
    "scaled up",
    "scaled down",
    "applied",
    "withdrawn",
    "blind",
    "sighted",
    "scaler failed",
    "switched up",
    "switched back",
    "failed over",
    "moved",
    "not repaired",
]
Note: TypeAlias = "Callable[[int, JournalEvent, str, str, bool], None]"
"""Adds a journal entry: time, event, name of a plan or of a stage on shares, text, dry run."""
JOURNAL_LENGTH = 20
"""Entries that the status shows."""


class JournalEntry(msgspec.Struct, frozen=True):
    """A decision, a plan applied or withdrawn, the begin or end of blindness, or an error of the scaler.

    `subject`: name of a plan, or of a stage on shares.
    """

    at_ns: int
    event: JournalEvent
    subject: str
    text: str
    dry_run: bool = False


class RecentEntry(msgspec.Struct, frozen=True):
    """A journal entry in the status."""

    age_ns: int
    event: str
    subject: str
    text: str
    dry_run: bool


class Journal:
    """The last entries, and those to write to the log."""

    def __init__(self) -> None:
        self.unwritten: list[JournalEntry] = []
        self._entries: deque[JournalEntry] = deque(maxlen=JOURNAL_LENGTH)

    def add(self, entry: JournalEntry) -> None:
        """Add an entry."""
        self._entries.appendleft(entry)
        self.unwritten.append(entry)

    def recent(self, now_ns: int) -> Iterator[RecentEntry]:
        """Yield the last entries, newest first."""
        for entry in self._entries:
            yield RecentEntry(now_ns - entry.at_ns, entry.event, entry.subject, entry.text, entry.dry_run)
