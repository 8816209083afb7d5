"""The applications that are declared: kept in the store, each with what it was before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.applications import Application, check_application, undeclared_application
from horologe_common.clock import NEVER_NS, s
from horologe_common.core.protocol import Out
from horologe_common.status import HorologeError, InvalidInput, Refused, Status
from horologe_common.wire import Applications, ApplicationState
from horologe_selector.core.applications.active_application import Running
from horologe_selector.store import Change, Listed, Record, Write, Written
from horologe_selector.store import List as ListFamily

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.service.metrics import Stats
    from horologe_common.wire import Declare, Rollback, Withdraw
    from horologe_selector.core.applications.losses import Loss
    from horologe_selector.core.catalogue import Catalogue

FAMILY = "applications"
STANDING = "horologe_application_model_"
"""Metrics of how the models of applications do begin so, and end with a field of their `Tally`."""
HISTORY = 10
"""Declarations kept to go back to."""
AGAIN_NS = s(1)
"""How often the list is read again: another selector may have changed it, or the store may be back."""


class Kept(msgspec.Struct, array_like=True):
    """What the store holds of an application: declarations, the present one last."""

    revision: int
    declarations: list[Application]


class Waiting(msgspec.Struct, frozen=True):
    """Who waits to be told that a change is kept."""

    frontend: str
    id: int
    name: str


class Registry:
    """`running` by name. A change takes effect when the store has it; `changed` says that frontends are to be told."""

    def __init__(
        self,
        losses: Mapping[str, Loss],
        catalogue: Catalogue,
        post: Callable[[Out], None],
        store: str,
        shared: bool,
        limit: int,
    ) -> None:
        self.running: dict[str, Running] = {}
        self.changed = False
        self.known = False
        """Whether the list has been read."""
        self._forgotten: list[tuple[str, bool]] = []
        self._losses = losses
        self._catalogue = catalogue
        self._post = post
        self._store = store
        self._shared = shared
        self._limit = limit
        self._records: dict[str, Record] = {}
        self._waiting: dict[str, Waiting] = {}
        self._list_ns = 0

    def declare(self, now_ns: int, frontend: str, message: Declare, buffers: Sequence[Buffer] = ()) -> None:
        """Keep the declaration, if it can be served. The present one once more is nothing to go back from."""
        name = message.application.name

        def change() -> Kept:
            check_application(message.application)
            self._catalogue.check_output(message.application)
            Running(message.application, 0, self._losses)
            if name not in self._records and len(self._records) >= self._limit:
                raise Refused(f"{self._limit} applications are declared already")
            kept = self._kept(name)
            if kept.declarations and kept.declarations[-1] == message.application:
                return kept
            return Kept(kept.revision + 1, [*kept.declarations, message.application][-HISTORY:])

        self._change(frontend, message.id, name, change)

    def rollback(self, now_ns: int, frontend: str, message: Rollback, buffers: Sequence[Buffer] = ()) -> None:
        """Declare again what was declared before."""

        def change() -> Kept:
            kept = self._kept(message.name)
            if not kept.declarations:
                raise undeclared_application(message.name)
            if len(kept.declarations) == 1:
                raise InvalidInput(f"application {message.name}: there is no earlier declaration")
            return Kept(kept.revision + 1, kept.declarations[:-1])

        self._change(frontend, message.id, message.name, change)

    def withdraw(self, now_ns: int, frontend: str, message: Withdraw, buffers: Sequence[Buffer] = ()) -> None:
        """Delete the application."""

        def change() -> None:
            if message.name not in self._records:
                raise undeclared_application(message.name)

        self._change(frontend, message.id, message.name, change)

    def _change(self, frontend: str, number: int, name: str, change: Callable[[], Kept | None]) -> None:
        try:
            if not self.known:
                raise Refused("applications are not known yet: the state store has not answered", AGAIN_NS)
            if name in self._waiting:
                raise Refused(f"application {name}: another change is being kept", AGAIN_NS)
            kept = change()
        except HorologeError as error:
            self._post(Out(frontend, Applications(number, (), int(error.status), error.reason)))
            return
        self._waiting[name] = Waiting(frontend, number, name)
        record = self._records.get(name)
        data = None if kept is None else msgspec.msgpack.encode(kept)
        self._post(Out(self._store, Write((Change(_key(name), record.version if record else 0, data),))))

    def _kept(self, name: str) -> Kept:
        record = self._records.get(name)
        return _read(record) if record else Kept(0, [])

    def written(self, now_ns: int, message: Written) -> None:
        """The store has answered a change of ours."""
        for place, change in enumerate(message.changes):
            name = change.key.partition("\n")[2]
            waiting = self._waiting.pop(name, None)
            if message.results is None:
                self.known, self._list_ns = False, now_ns + AGAIN_NS  # it may have been written nevertheless
                self._told(waiting, Status.REFUSED, message.reason or "the state store is away")
            elif isinstance(there := message.results[place], Record):
                self._adopt(name, there if there.version else None)
                self._told(waiting, Status.REFUSED, f"application {name}: changed meanwhile: try again")
            else:
                self._adopt(name, Record(change.key, there, change.data) if change.data else None, ours=True)
                self._told(waiting, Status.OK, "")

    def _told(self, waiting: Waiting | None, status: Status, reason: str) -> None:
        if waiting is not None:
            running = self.running.get(waiting.name)
            states = (running.describe(),) if running is not None and status == Status.OK else ()
            self._post(Out(waiting.frontend, Applications(waiting.id, states, int(status), reason)))

    def listed(self, now_ns: int, keeper: str, message: Listed, buffers: Sequence[Buffer] = ()) -> None:
        """All that is declared, by whichever selector."""
        if message.records is None:
            return
        self.changed |= not self.known
        self.known = True
        found = {record.key.partition("\n")[2]: record for record in message.records}
        for name in [name for name in self._records if name not in found and name not in self._waiting]:
            self._adopt(name, None)
        for name, record in found.items():
            if name not in self._waiting and self._records.get(name) != record:
                self._adopt(name, record)

    def _adopt(self, name: str, record: Record | None, ours: bool = False) -> None:
        """Serve what the record says, or no longer."""
        self.changed = True
        before = self.running.pop(name, None)
        if before is not None:
            before.replaced = True
        if record is None:
            self._records.pop(name, None)
            self._forgotten.append((name, ours))
            return
        self._records[name] = record
        kept = _read(record)
        try:
            check_application(kept.declarations[-1])
            running = Running(kept.declarations[-1], kept.revision, self._losses)
        except (InvalidInput, IndexError):  # by another version of ours, with a policy or fields we do not have
            return
        if before is not None:
            running.take_over(before)
        self.running[name] = running

    def take_forgotten(self) -> list[tuple[str, bool]]:
        """Applications that are gone since the core last asked, and whether it was we who deleted them."""
        forgotten, self._forgotten = self._forgotten, []
        return forgotten

    def tick(self, now_ns: int) -> None:
        """Read the list again when it is time."""
        if now_ns >= self.next_ns():
            self._list_ns = now_ns + AGAIN_NS
            self._post(Out(self._store, ListFamily(FAMILY)))

    def next_ns(self) -> int:
        return NEVER_NS if self.known and not self._shared else self._list_ns

    def publish(self, stats: Stats) -> None:
        """How the models have done, as metrics. From the thread that exports them, while the loop goes on."""
        stats.remove_values(STANDING)
        for name, running in list(self.running.items()):
            for model, tally in running.tallies.items():
                for metric in tally.__struct_fields__:
                    stats.set(f"{STANDING}{metric}_total", name, model, to=getattr(tally, metric))

    def states(self) -> tuple[ApplicationState, ...]:
        """What is announced."""
        return tuple(running.describe() for _, running in sorted(self.running.items()))


def _key(name: str) -> str:
    return f"{FAMILY}\n{name}"


def _read(record: Record) -> Kept:
    """Nothing, where it cannot be read: then it is not served, and can be declared anew or withdrawn."""
    try:
        return msgspec.msgpack.decode(record.data, type=Kept)
    except msgspec.MsgspecError:
        return Kept(0, [])
