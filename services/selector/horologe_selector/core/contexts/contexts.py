"""What policies have learned, a state for each application and context (Clipper section 5.3), between loop and store.

Observations change a state in memory at once and are saved behind: while a write of it is under way, what comes next
gathers for the next one. Where another selector was first, what is not saved yet is observed again, upon the state that
is there now. No observation is lost, and none counts twice: a record names the last write of each writer that is in
it, which tells what became of a write whose answer was lost.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from horologe_selector.core.contexts.context import family_of, key_of
from horologe_selector.core.contexts.context_lru import Recent
from horologe_selector.core.contexts.context_reads import Reads
from horologe_selector.store import Found, Read, Trim, Write, Written

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_selector.core.applications.active_application import Running
    from horologe_selector.core.contexts.context import Context
    from horologe_selector.policy import Selection
    from horologe_selector.settings import SelectorSettings
    from horologe_selector.store import Record

TRIM_EVERY = 16
"""The store is trimmed whenever this part of an application's contexts is new to it."""


class Contexts:
    """`saved`: tokens of observations that are durable, since the last look. `failed`: tokens, and why not."""

    def __init__(self, settings: SelectorSettings, address: str, shared: bool) -> None:
        self.settings = settings
        self.saved: list[Any] = []
        self.failed: list[tuple[Any, str]] = []
        self.unsaved = 0
        self._writer = int.from_bytes(hashlib.blake2b(address.encode(), digest_size=7).digest())
        self._shared = shared
        self._contexts = Recent(settings.contexts_memory)
        self._out: list[Read | Write | Trim] = []
        self._dirty: list[Context] = []
        self._doubtful: list[Context] = []
        self._reads = Reads()
        self._ready: list[tuple[str, str]] = []
        self._created: dict[str, int] = {}
        self._writes = 0
        self._again_ns = 0

    @property
    def away(self) -> bool:
        """Whether the store was, when last asked."""
        return self._again_ns > 0

    def count(self, application: str) -> int:
        """States in memory."""
        return self._contexts.count(application)

    def get(self, now_ns: int, running: Running, context: str) -> Any:
        """The state; None while it is being read, `ready` will tell.

        For an application that has been replaced since: what it would make of the state of now, if that is in memory.
        """
        if running.replaced:
            return self.known(running, context) or running.policy.init()
        one = self._contexts.use(running, context)
        if one.read_ns < 0 or self._shared:
            self._refresh(now_ns, one)
        one.awaited = one.awaited or one.state is None
        return one.state

    def known(self, running: Running, context: str) -> Any:
        """What is in memory, as `running` sees it, or None; nothing is read for it, made or forgotten."""
        one = self._contexts.get(key_of(running.application.name, context))
        if one is None or one.state is None:
            return None
        return one.state if one.running is running else running.policy.init(one.state)

    def stale(self, now_ns: int, running: Running, context: str) -> bool:
        """Whether the store knows more, or may: for who only looks, and would have it read by `look`."""
        one = self._contexts.get(key_of(running.application.name, context))
        if one is None or one.state is None:
            return True
        return self._shared and not one.held and not self._fresh(now_ns, one)

    def look(self, key: str) -> None:
        """Have a record read that nobody wants to change. Its Found is whoever's who asked."""
        self._out.append(Read((key,)))

    def ready(self) -> list[tuple[str, str]]:
        """(application, context) of states that `get` had not and now has: read, or given up on."""
        ready, self._ready = self._ready, []
        return ready

    def observe(
        self,
        now_ns: int,
        running: Running,
        context: str,
        selection: Selection,
        losses: Mapping[str, float],
        token: Any,
        name: bytes = b"",
    ) -> None:
        """Learn from losses of models of `selection`. The token comes back in `saved` when that is durable.

        What has a `name` (`name_of`) counts once, if it comes again while it is among the context's latest.
        """
        one = self._contexts.use(running, context)
        if one.read_ns < 0:
            self._refresh(now_ns, one)
        if one.learn(selection, losses, token, name):
            self.unsaved += 1
            self._soil(one)
        else:
            self.saved.append(token)

    def handle(self, now_ns: int, message: Any) -> None:
        """Found or Written. Keys that are no contexts' are left alone."""
        if isinstance(message, Found):
            self._found(now_ns, message)
        elif isinstance(message, Written):
            self._written(now_ns, message)

    def tick(self, now_ns: int) -> None:
        """Ask for what is wanted, save what has changed, go on without what is not read in time."""
        for one in self._reads.overdue(now_ns):
            self._rest(one, None)
        self._contexts.shrink()
        if now_ns < self._again_ns:
            return
        self._out += self._reads.take()
        if self._dirty or self._doubtful:
            # What is tried again is the very same, to be known again.
            changes = [one.change for one in self._doubtful if one.change]
            for one in self._dirty:
                self._writes += 1
                changes.append(one.begin(self._writer, self._writes, self._shared))
            self._doubtful.clear()
            self._dirty.clear()
            self._out.append(Write(tuple(changes)))

    def take(self) -> list[Read | Write | Trim]:
        """Messages for the keeper."""
        out, self._out = self._out, []
        return out

    def wakeup_ns(self) -> int | None:
        waits = self._dirty or self._doubtful or self._reads.wanted
        times = (self._again_ns if waits else None, self._reads.next_ns())
        return min((at_ns for at_ns in times if at_ns is not None), default=None)

    def forget(self, application: str, erase: bool = False) -> None:
        """It was withdrawn, by whichever selector; with `erase`, delete what is stored too."""
        for one in self._contexts.forget(application):
            if one.awaited:
                self._ready.append((application, one.key.partition("\n")[2]))
            self.failed += [(observed.token, f"application {application!r} was withdrawn") for observed in one.unsaved]
            self.unsaved -= len(one.unsaved)
            one.unsaved, one.reading, one.change = [], False, None
        self._dirty = [one for one in self._dirty if one.key in self._contexts]
        self._doubtful = [one for one in self._doubtful if one.key in self._contexts]
        self._reads.keep(self._contexts)
        self._created.pop(application, None)
        if erase:
            self._out.append(Trim(family_of(application), 0))

    def check(self) -> None:
        assert self.unsaved == sum(len(one.unsaved) for one in self._contexts)
        dirty = {id(one) for one in self._dirty}
        for one in self._contexts:
            assert one.dirty == (id(one) in dirty)
            assert one.sent <= len(one.unsaved)
            assert one.change or not one.sent
            assert not one.unsaved or one.change or one.dirty or one.reading

    def _refresh(self, now_ns: int, one: Context) -> None:
        """Have it read, if it never was, or others may have written it since. Nobody waits for a store that is away."""
        if one.reading or self._fresh(now_ns, one):
            return
        if now_ns < self._again_ns:
            if one.state is None:
                self._rest(one, None)
            return
        self._reads.want(one, now_ns + self.settings.context_read_ns)

    def _fresh(self, now_ns: int, one: Context) -> bool:
        return one.read_ns >= 0 and now_ns < one.read_ns + self.settings.context_refresh_ns

    def _rest(self, one: Context, record: Record | None) -> None:
        """It is as stored; or, for all we know, new: if that is wrong, its first write will be told."""
        self._keep(one.rest_on(record))
        self._told(one)

    def _keep(self, tokens: list[Any]) -> None:
        """These are saved."""
        self.unsaved -= len(tokens)
        self.saved += tokens

    def _told(self, one: Context) -> None:
        if one.awaited:
            one.awaited = False
            self._ready.append((one.running.application.name, one.key.partition("\n")[2]))
        if one.unsaved:
            self._soil(one)

    def _soil(self, one: Context) -> None:
        if not one.dirty and one.change is None and one.state is not None:
            one.dirty = True
            self._dirty.append(one)

    def _found(self, now_ns: int, message: Found) -> None:
        records = message.records
        self._again_ns = now_ns + self.settings.store_pause_ns if records is None else 0
        for at, key in enumerate(message.keys):
            one = self._contexts.get(key)
            if one is None or not one.reading:
                continue
            record = records[at] if records else None
            one.reading, one.read_ns = False, now_ns if records else one.read_ns
            if one.state is None or (records and not one.change and one.version != (record.version if record else 0)):
                self._rest(one, record)

    def _written(self, now_ns: int, message: Written) -> None:
        results = message.results
        self._again_ns = now_ns + self.settings.store_pause_ns if results is None else 0
        saved: list[Any] = []
        for at, change in enumerate(message.changes):
            one = self._contexts.get(change.key)
            if one is None or one.change != change:
                continue
            if results is None:
                self._doubtful.append(one)
                continue
            result = results[at]
            if isinstance(result, int):
                saved += one.done(change, result)
                if change.version == 0:
                    self._count(one.running)
            else:
                saved += one.overtaken(self._writer, result)
                one.read_ns = now_ns
            self._told(one)
        self._keep(saved)

    def _count(self, running: Running) -> None:
        """One more record of its application: have the oldest deleted before there are too many."""
        name, limit = running.application.name, running.application.contexts
        created = self._created.get(name, limit) + 1
        if created * TRIM_EVERY > limit:
            self._out.append(Trim(family_of(name), limit))
            created = 0
        self._created[name] = created
