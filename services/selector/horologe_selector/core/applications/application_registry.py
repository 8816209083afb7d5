"""Registry of declared applications. The store holds the last declarations of each, for rollback."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.applications import NAME_LIMIT, Application, check_application, undeclared_application
from horologe_common.clock import NEVER_NS, s
from horologe_common.core.message_checks import NUMBER_MAX, check_range
from horologe_common.core.message_order import RecentCalls
from horologe_common.core.protocol import Out
from horologe_common.partial_decoding import DAMAGE
from horologe_common.status import HorologeError, InvalidInput, Refused, Status
from horologe_common.wire import Applications, ApplicationState
from horologe_selector.core.applications.active_application import ActiveApplication
from horologe_selector.store import (
    DAMAGED,
    DAMAGED_LIMIT,
    DamagedRecord,
    FamilyListed,
    ListFamily,
    Record,
    RecordChange,
    RecordsWritten,
    TrimFamily,
    WriteRecords,
    aside_change,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from horologe_common.core.instruments import Stats
    from horologe_common.core.protocol import Buffer
    from horologe_common.wire import Declare, Rollback, Withdraw
    from horologe_selector.core.announced_models import AnnouncedModels
    from horologe_selector.core.applications.losses import Loss

FAMILY = "applications"
MODEL_METRICS = "horologe_application_model_"
"""Prefix of the metrics by application and model; the rest is a field of `ModelTally`."""
HISTORY = 10
"""Number of declarations kept per application."""
APPLICATIONS_LIMIT = 1000
"""Maximum number of declared applications."""
LIST_INTERVAL_NS = s(1)
"""Interval for listing the store's declarations, while another selector may change them or they are not known."""


class StoredDeclarations(msgspec.Struct, array_like=True):
    """Record of an application in the store: its declarations, the present one last."""

    revision: int
    declarations: list[Application]


class PendingChange(msgspec.Struct, frozen=True):
    """Change of an application that the store has not confirmed yet, and the frontend that requested it."""

    frontend: str
    id: int
    name: str


class ApplicationRegistry:
    """Active applications by name. A change takes effect when the store has confirmed it.

    `changed` is set when the frontends need a new announcement; `loaded` once the store's list has been read.
    """

    def __init__(
        self,
        losses: Mapping[str, Loss],
        models: AnnouncedModels,
        post: Callable[[Out], None],
        store: str,
        shared: bool,
    ) -> None:
        self.active: dict[str, ActiveApplication] = {}
        self._damaged: dict[str, str] = {}
        """Applications whose record cannot be used, and why."""
        self.changed = False
        self.loaded = False
        self._announcements = 0
        self._calls = RecentCalls()
        self._removed: list[tuple[str, bool]] = []
        self._losses = losses
        self._models = models
        self._post = post
        self._store = store
        self._shared = shared
        self._records: dict[str, Record] = {}
        self._pending_changes: dict[str, PendingChange] = {}
        self._list_ns = 0

    def on_declare(self, now_ns: int, frontend: str, message: Declare, buffers: Sequence[Buffer] = ()) -> None:
        """Store a declaration after checking it. Declaring the present one again adds nothing to the history."""
        name = message.application.name

        def change() -> StoredDeclarations:
            self._open_application(message.application, 0)
            self._models.check_output(message.application)
            if name not in self._records and len(self._records) >= APPLICATIONS_LIMIT:
                raise Refused(f"{APPLICATIONS_LIMIT} applications are declared already")
            stored = StoredDeclarations(0, []) if name in self._damaged else self._stored_declarations(name)
            if stored.declarations and stored.declarations[-1] == message.application:
                return stored
            return StoredDeclarations(stored.revision + 1, [*stored.declarations, message.application][-HISTORY:])

        self._write_change(frontend, message.id, name, change)

    def on_rollback(self, now_ns: int, frontend: str, message: Rollback, buffers: Sequence[Buffer] = ()) -> None:
        """Return to the declaration before the present one, if it is valid."""

        def change() -> StoredDeclarations:
            stored = self._stored_declarations(message.name)
            if not stored.declarations:
                raise undeclared_application(message.name)
            if len(stored.declarations) == 1:
                raise InvalidInput(f"application {message.name}: there is no earlier declaration")
            self._open_application(stored.declarations[-2], 0)
            return StoredDeclarations(stored.revision + 1, stored.declarations[:-1])

        self._write_change(frontend, message.id, message.name, change)

    def unknown_application(self, name: str) -> HorologeError:
        """Return the error for an application that is not active.

        It is `Refused` until the store has been read, and, without a time for a retry, if its record is damaged.
        """
        if not self.loaded:
            return Refused("applications are not known yet: the state store has not answered", LIST_INTERVAL_NS)
        if reason := self._damaged.get(name):
            return Refused(reason)
        return undeclared_application(name)

    def on_withdraw(self, now_ns: int, frontend: str, message: Withdraw, buffers: Sequence[Buffer] = ()) -> None:

        def change() -> None:
            if message.name not in self._records:
                raise undeclared_application(message.name)

        self._write_change(frontend, message.id, message.name, change)

    def _write_change(
        self, frontend: str, number: int, name: str, change: Callable[[], StoredDeclarations | None]
    ) -> None:
        """Write the result of `change` to the store (None: delete the record), or answer with the error it raises.

        Ignore a call that arrives again.
        """
        if self._calls.is_repeated(frontend, number):
            return
        try:
            if not self.loaded:
                raise self.unknown_application(name)
            if name in self._pending_changes:
                raise Refused(f"application {name}: another change is being saved", LIST_INTERVAL_NS)
            stored = change()
        except HorologeError as error:
            self._post(Out(frontend, Applications(number, (), int(error.status), error.reason)))
            return
        self._pending_changes[name] = PendingChange(frontend, number, name)
        record = self._records.get(name)
        data = None if stored is None else msgspec.msgpack.encode(stored)
        changes = [RecordChange(f"{FAMILY}\n{name}", record.version if record else 0, data)]
        if record and name in self._damaged:
            changes.append(aside_change(record.key, record.version, record.data))
        self._post(Out(self._store, WriteRecords(tuple(changes))))
        if len(changes) > 1:
            self._post(Out(self._store, TrimFamily(DAMAGED, DAMAGED_LIMIT)))

    def _stored_declarations(self, name: str) -> StoredDeclarations:
        """Return the declarations in the store. Raises `InvalidInput` if the record is damaged."""
        record = self._records.get(name)
        return decode_declarations(record) if record else StoredDeclarations(0, [])

    def _open_application(self, application: Application, revision: int) -> ActiveApplication:
        check_application(application)
        return ActiveApplication(application, revision, self._losses)

    def on_written(self, now_ns: int, message: RecordsWritten) -> None:
        """Activate changes that the store confirmed, and answer the frontends that requested them."""
        for index, change in enumerate(message.changes):
            family, _, name = change.key.partition("\n")
            if family != FAMILY:
                continue
            pending = self._pending_changes.pop(name, None)
            if message.results is None:
                # The change may have been written nevertheless: read the list again.
                self.loaded, self._list_ns = False, now_ns + LIST_INTERVAL_NS
                self._answer(pending, Status.REFUSED, message.reason or "the state store is unavailable")
            elif isinstance(result := message.results[index], Record):
                self._activate(name, result if result.version else None)
                self._answer(pending, Status.REFUSED, f"application {name}: changed meanwhile: try again")
            else:
                record = Record(change.key, result, change.data) if change.data else None
                self._activate(name, record, own_change=True)
                self._answer(pending, Status.OK, "")

    def _answer(self, pending: PendingChange | None, status: Status, reason: str) -> None:
        if pending is not None:
            active = self.active.get(pending.name)
            states = (active.describe(),) if active is not None and status == Status.OK else ()
            self._post(Out(pending.frontend, Applications(pending.id, states, int(status), reason)))

    def on_listed(self, now_ns: int, store: str, message: FamilyListed, buffers: Sequence[Buffer] = ()) -> None:
        """Adopt all declarations in the store, including those of other selectors."""
        if message.records is None:
            return
        self.changed |= not self.loaded
        self.loaded = True
        records = {record.key.partition("\n")[2]: record for record in message.records}
        for name in [name for name in self._records if name not in records and name not in self._pending_changes]:
            self._activate(name, None)
        for name, record in records.items():
            if name not in self._pending_changes and self._records.get(name) != record:
                self._activate(name, record)

    def _activate(self, name: str, record: Record | None, own_change: bool = False) -> None:
        """Replace the active application by the one in `record`, or remove it if `record` is None."""
        self.changed = True
        previous = self.active.pop(name, None)
        self._damaged.pop(name, None)
        if previous is not None:
            previous.replaced = True
        if record is None:
            self._records.pop(name, None)
            self._removed.append((name, own_change))
            return
        self._records[name] = record
        try:
            stored = decode_declarations(record)
            active = self._open_application(stored.declarations[-1], stored.revision)
        except InvalidInput as error:  # damaged, or written by a version with policies or fields that this one lacks
            self._damaged[name] = f"application {name!r} is unavailable: its stored declaration is not valid: {error}"
            self._post(Out(self._store, DamagedRecord(record.key, error.reason)))
            return
        if previous is not None:
            active.carry_over(previous)
        self.active[name] = active

    def pop_removed(self) -> list[tuple[str, bool]]:
        """Return the applications removed since the last call, and whether this selector deleted them."""
        removed, self._removed = self._removed, []
        return removed

    def tick(self, now_ns: int) -> None:
        """List the declarations in the store if the last list is too old."""
        if now_ns >= self.next_ns():
            self._list_ns = now_ns + LIST_INTERVAL_NS
            self._post(Out(self._store, ListFamily(FAMILY)))

    def next_ns(self) -> int:
        return NEVER_NS if self.loaded and not self._shared else self._list_ns

    def publish_metrics(self, stats: Stats) -> None:
        """Set the metrics of all models. Called by the exporting thread while the loop runs."""
        stats.remove_values(MODEL_METRICS)
        for name, active in list(self.active.items()):
            for model, tally in active.tallies.items():
                for metric in tally.__struct_fields__:
                    stats.set(f"{MODEL_METRICS}{metric}_total", name, model, to=getattr(tally, metric))

    def announcement(self) -> Applications:
        self._announcements += 1
        return Applications(0, self.announced_states(), number=self._announcements)

    def announced_states(self) -> tuple[ApplicationState, ...]:
        """Return the declarations of all active applications, by name, then those that are unavailable."""
        states = [active.describe() for _, active in sorted(self.active.items())]
        damaged = sorted(self._damaged.items())
        return (*states, *(ApplicationState(Application(name, ()), 0, unavailable=reason) for name, reason in damaged))


def decode_declarations(record: Record) -> StoredDeclarations:
    """Decode a record. Raises `InvalidInput` if it is not one of this application."""
    name = record.key.partition("\n")[2]
    try:
        stored = msgspec.msgpack.decode(record.data, type=StoredDeclarations)
    except DAMAGE as error:
        raise InvalidInput(f"record: {error or type(error).__name__}") from error
    check_range("revision", stored.revision, 1, NUMBER_MAX)
    check_range("declarations", len(stored.declarations), 1, HISTORY)
    if (got := stored.declarations[-1].name) != name:
        raise InvalidInput(f"name: got {got[:NAME_LIMIT]!r}, wanted {name!r}")
    return stored
