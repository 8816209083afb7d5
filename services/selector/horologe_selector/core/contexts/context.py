"""The state of one context: what is stored, what has been observed since, and the write under way."""

from __future__ import annotations

import hashlib
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec

from horologe_common.prediction_id import HEAD_BYTES, MARK_BYTES, NONCE_BYTES
from horologe_selector.store import Change

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_selector.core.applications.active_application import Running
    from horologe_selector.policy import Selection
    from horologe_selector.store import Record

FAMILIES = "contexts/"
"""In front of an application's name, this is the family of its states in the store."""
WRITERS = 8
"""Writers whose last write a record names: more than write to one context at the same time."""
OURS = HEAD_BYTES + 32
"""Bytes of a prediction's name that a selector has given."""
LATEST = 4
"""Observations that a record names at least; else those of its last write. Eight take 13% of SQLite's rate, four 6%."""
NAMES = 4096
"""Named at most: of 10,000 in one write the first are forgotten."""
NOTHING = bytes(LATEST * NONCE_BYTES)
"""Names of a new record."""


class Kept(msgspec.Struct, array_like=True, gc=False):
    """A state as it is stored. `revision`: of the application; `writers`: the number of the last write of each, oldest
    first; `names`: what was observed lately, at the end, where it is found without reading the rest."""

    revision: int
    writers: dict[int, int]
    state: Any
    names: bytes


class Stored(msgspec.Struct, array_like=True):
    """`Kept`, read: what its state is, the policy knows."""

    revision: int
    writers: dict[int, int]
    state: msgspec.Raw


class Observed(NamedTuple):
    selection: Selection
    losses: Mapping[str, float]
    token: Any
    name: bytes = b""
    """Empty: nobody can tell if it comes again."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Stored).decode


def family_of(application: str) -> str:
    return FAMILIES + application


def key_of(application: str, context: str) -> str:
    """In the store."""
    return f"{FAMILIES}{application}\n{context}"


@cache
def _decoder(state: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(state)


def name_of(prediction: bytes) -> bytes:
    """What an observation on this prediction is called in a record: its nonce, or, of a name that a client has made up,
    a hash."""
    if len(prediction) == OURS:
        return prediction[MARK_BYTES:HEAD_BYTES]
    return hashlib.blake2b(prediction, digest_size=NONCE_BYTES).digest() if prediction else b""


def stored(data: bytes) -> Stored | None:
    """None for what cannot be read."""
    try:
        return _decode(data)
    except msgspec.MsgspecError:
        return None


def restored(running: Running, kept: Stored | None) -> Any:
    """The state for the application as it is now, for just the models it has. One of another policy is as good as none.

    Also where the revision is the same: it begins anew when an application is withdrawn, and what another selector
    writes at that moment outlives the rest.
    """
    policy = running.policy
    if kept is None:
        return policy.init()
    try:
        kind: Any = policy.State
        state = _decoder(kind).decode(kept.state)
    except msgspec.MsgspecError:
        return policy.init()
    return policy.init(state)


class Context(msgspec.Struct, eq=False):
    """`state` is what `data`, in the store as `version`, becomes by the observations in `unsaved`.

    `change` is the write under way, or one whose outcome is not known, with the first `sent` of `unsaved`.
    """

    key: str
    running: Running
    state: Any = None
    """None: not known yet."""
    version: int = 0
    data: bytes = b""
    writers: dict[int, int] = {}
    """Others', and our own, that are in `data`; only of a store that is shared."""
    unsaved: list[Observed] = []
    change: Change | None = None
    sent: int = 0
    number: int = 0
    """Of the last write, among `writers`."""
    read_ns: int = -1
    """When; -1: not yet."""
    reading: bool = False
    awaited: bool = False
    """Whether somebody is to be told when the state is known."""
    dirty: bool = False
    """Whether it waits for its write to begin."""
    whole: ClassVar[bool] = True

    @property
    def held(self) -> bool:
        """Whether it must stay in memory."""
        return bool(self.unsaved or self.reading or self.change)

    def serve(self, running: Running) -> None:
        """It was declared anew: what is stored tells more than a state that another declaration has cut."""
        self.running = running
        if self.state is None:
            return
        kept = stored(self.data) if self.data and not self.unsaved else None
        self.state = restored(running, kept) if kept else running.policy.init(self.state)

    def learn(self, selection: Selection, losses: Mapping[str, float], token: Any, name: bytes = b"") -> bool:
        """False: there was nothing to learn, or it was learned before, and so there is nothing to save."""
        if self.state is not None:
            if name and name in self.data:
                return False
            state = self.running.policy.observe(self.state, selection, losses)
            if state is self.state:
                return False
            self.state = state
        self.unsaved.append(Observed(selection, losses, token, name))
        return True

    def rest_on(self, record: Record | None) -> list[Any]:
        """This is what is stored (None or version 0: nothing), and what is not saved is observed again upon it.

        What was stored and is not there any more, deleted to make room or lost, is as it was read last. The tokens of
        what is in it already, because it was sent to another selector too, or to one that was here before.
        """
        running = self.running
        if record and record.version:
            self.version, self.data = record.version, record.data
        else:
            self.version = 0
        kept = stored(self.data) if self.data else None
        self.writers = kept.writers if kept else {}
        state, models = restored(running, kept), running.application.models
        again = [one.token for one in self.unsaved if one.name and one.name in self.data]
        if again:
            self.unsaved = [one for one in self.unsaved if not one.name or one.name not in self.data]
        for one in self.unsaved:
            losses = {model: loss for model, loss in one.losses.items() if model in models}
            state = running.policy.observe(state, one.selection, losses)
        self.state = state
        return again

    def begin(self, writer: int, number: int, shared: bool) -> Change:
        """Write it as it is now."""
        writers = {writer: number}
        if shared and self.writers:
            writers = {**self.writers}
            writers.pop(writer, None)
            writers[writer] = number
            if len(writers) > WRITERS:
                del writers[next(iter(writers))]
        self.writers, self.number, self.sent, self.dirty = writers, number, len(self.unsaved), False
        unsaved = self.unsaved
        names = unsaved[0].name if len(unsaved) == 1 else b"".join([one.name for one in unsaved[-NAMES:]])
        # A record ends in its names. In front of its first ones is state: as good as names that never come.
        names = ((self.data or NOTHING) + names)[-max(len(names), len(NOTHING)) :]
        data = _encode(Kept(self.running.revision, writers, self.state, names))
        self.change = Change(self.key, self.version, data)
        return self.change

    def done(self, change: Change, version: int) -> list[Any]:
        """The write was done; the tokens of what it has saved."""
        self.change, self.version, self.data = None, version, change.data or b""
        return self._saved()

    def overtaken(self, writer: int, record: Record) -> list[Any]:
        """Another write was first; tokens of what is saved after all, if that was an earlier try of this one."""
        self.change = None
        kept = stored(record.data) if record.version else None
        tokens = self._saved() if kept and kept.writers.get(writer) == self.number else []
        self.sent = 0
        return tokens + self.rest_on(record)

    def _saved(self) -> list[Any]:
        tokens = [one.token for one in self.unsaved[: self.sent]]
        del self.unsaved[: self.sent]
        self.sent = 0
        return tokens
