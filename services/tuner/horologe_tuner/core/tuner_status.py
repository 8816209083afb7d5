"""What operators see of the tuner: its journal, a line for each decision, and its status."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from horologe_tuner.core.plans.running_plan import PlanStatus
from horologe_tuner.core.rehearsal.rehearsals import RehearsalStatus

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
    "scheduler changed",
    "rehearsal failed",
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


class TunerStatus(msgspec.Struct, frozen=True):
    """State of the tuner for operators."""

    blind: str
    """Why arrivals cannot be seen; empty: they can."""
    dry_run: bool
    scaler: str
    scaler_error: str
    workers_wanted: dict[str, int]
    """By hardware type."""
    workers_running: dict[str, int]
    """As the scaler reports them."""
    devices_connected: dict[str, int]
    """As the controller reports them."""
    unserved_models: tuple[str, ...]
    """Planned models that no worker serves."""
    plans: tuple[PlanStatus, ...]
    journal: tuple[RecentEntry, ...]
    """The last entries, newest first."""
    shares_running: tuple[str, ...] = ()
    """Workers of shares, as the scaler reports them."""
    rehearsal: RehearsalStatus | None = None
    """None: no schedulers have been compared."""


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
