"""One context: its state as stored, the observations since, and the write in flight."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec

from horologe_common.application_answers import HEAD_BYTES, MARK_BYTES, NONCE_BYTES
from horologe_common.partial_decoding import DAMAGE
from horologe_selector.policy import PolicyState
from horologe_selector.store import RecordChange

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_selector.core.applications.active_application import ActiveApplication
    from horologe_selector.policy import Selection
    from horologe_selector.store import Record

FAMILIES = "contexts/"
"""Prefix of an application's name that gives the family of its context records."""
WRITERS = 8
"""Maximum number of writers in a record: more than write to one context at the same time."""
RECORD_BYTES = 1 << 20
"""Size of a record. With 64 models of the longest names and all observation names, it is a twentieth of this."""
ISSUED_BYTES = HEAD_BYTES + 32
"""Length of a prediction id that a selector has issued."""
MIN_NAMES = 4
"""Minimum number of observation names in a record. Eight cost 13% of SQLite's write rate, four cost 6%."""
MAX_NAMES = 4096
"""Maximum number of observation names in a record. Of a larger write, only the last ones are named."""
NO_NAMES = bytes(MIN_NAMES * NONCE_BYTES)
"""Names of a record without observations."""


class ContextRecord(msgspec.Struct, array_like=True, gc=False):
    """State as it is stored; a decoded record has a state of built-in types, which the policy's type converts.

    `revision`: of the application. `writers`: number of each writer's last write in the state, the oldest first.
    `names`: names of the latest observations. They are at the end of the record, so that a name is found there without
    decoding the rest.
    """

    revision: int
    writers: dict[int, int]
    state: Any
    names: bytes = b""


class UnsavedObservation(NamedTuple):
    selection: Selection
    losses: Mapping[str, float]
    token: Any
    name: bytes = b""
    """Empty: a duplicate cannot be detected."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ContextRecord).decode


def context_family(application: str) -> str:
    return FAMILIES + application


def context_key(application: str, context: str) -> str:
    return f"{FAMILIES}{application}\n{context}"


def observation_name(prediction: bytes) -> bytes:
    """Return the name of an observation in records: the nonce of the prediction id, or the hash of a client's own id.

    Return b"" without a prediction id.
    """
    if len(prediction) == ISSUED_BYTES:
        return prediction[MARK_BYTES:HEAD_BYTES]
    return hashlib.blake2b(prediction, digest_size=NONCE_BYTES).digest() if prediction else b""


class StoredContext(NamedTuple):
    """Content of a record: its writers, and its state adapted to the present models of the application.

    A damaged record has a new state. `damage`: why it cannot be used; empty: it can.
    """

    writers: dict[int, int]
    state: Any
    damage: str = ""


def read_context(active: ActiveApplication, data: bytes) -> StoredContext:
    """Decode a record. Without bytes, or if the state is another policy's, the state is a new one.

    The revision does not matter: it starts again when an application is withdrawn, and another selector may write a
    context at that moment.
    """
    policy = active.policy
    if not data:
        return StoredContext({}, policy.init())
    try:
        record = decode_record(data)
        return StoredContext(record.writers, policy.init(_convert_state(policy.state_type, record.state)))
    except DAMAGE as error:
        return StoredContext({}, policy.init(), f"{type(error).__name__}: {error}")


def decode_record(data: bytes) -> ContextRecord:
    """Decode a record. Raises `DAMAGE`."""
    if len(data) > RECORD_BYTES:
        raise ValueError(f"got {len(data)} bytes, wanted at most {RECORD_BYTES}")
    return _decode(data)


def _convert_state(state_type: Any, state: Any) -> Any:
    """Return the state of a policy; None if it is another policy's. Raises `DAMAGE`."""
    try:
        return msgspec.convert(state, state_type)
    except msgspec.ValidationError:
        tag = state[0] if isinstance(state, list) and state else None
        kinds = [kind for kind in PolicyState.__subclasses__() if kind is not state_type]
        if isinstance(tag, str) and tag in [kind.__struct_config__.tag for kind in kinds]:
            return None
        raise


class Context(msgspec.Struct, eq=False):
    """State of a policy for one context.

    Invariant: `state` is the stored `data` (version `version`) plus the observations in `unsaved`. `change` is the
    write in flight, or one with an unknown outcome; it contains the first `sent` of the unsaved observations.
    """

    key: str
    active: ActiveApplication
    state: Any = None
    """None until it is known."""
    version: int = 0
    data: bytes = b""
    damage: str = ""
    """Why `data` cannot be used. It is then copied before it is replaced."""
    writers: dict[int, int] = {}
    """Writers in `data`, for a shared store."""
    unsaved: list[UnsavedObservation] = []
    change: RecordChange | None = None
    sent: int = 0
    write_number: int = 0
    """Number of this selector's last write, as in `writers`."""
    read_ns: int = -1
    """Time of the last read; -1 before the first."""
    reading: bool = False
    awaited: bool = False
    """True if queries wait for the state."""
    dirty: bool = False
    """True if a write must be started."""
    whole: ClassVar[bool] = True
    """Snapshots keep all bytes (recording/snapshot.py)."""

    @property
    def is_busy(self) -> bool:
        """True while the context must stay in memory."""
        return bool(self.unsaved or self.reading or self.change)

    @property
    def valid_data(self) -> bytes:
        """The stored record; empty if it is damaged, so that its observations count again."""
        return b"" if self.damage else self.data

    def change_application(self, active: ActiveApplication) -> None:
        """Adapt the state to a new declaration.

        Use the stored record where it is current: the state in memory has lost models that the last declaration lacked.
        """
        self.active = active
        if self.state is None:
            return
        stored = read_context(active, self.valid_data) if self.valid_data and not self.unsaved else None
        self.state = stored.state if stored and not stored.damage else active.policy.init(self.state)

    def observe(self, selection: Selection, losses: Mapping[str, float], token: Any, name: bytes = b"") -> bool:
        """Update the state. Return False if nothing needs saving: a duplicate, or the policy learns nothing from it."""
        if self.state is not None:
            if name and name in self.valid_data:
                return False
            state = self.active.policy.observe(self.state, selection, losses)
            if state is self.state:
                return False
            self.state = state
        self.unsaved.append(UnsavedObservation(selection, losses, token, name))
        return True

    def rebase(self, record: Record | None) -> list[Any]:
        """Take the stored state (none for None or version 0) and observe the unsaved observations again upon it.

        If a record that was read before was trimmed or lost since, use its last content. Return the tokens of
        observations that the record already contains: they were sent to another selector too, or to an earlier
        incarnation.
        """
        active = self.active
        if record and (record.version or record.data):
            self.version, self.data = record.version, record.data
        else:
            self.version = 0
        self.writers, state, self.damage = read_context(active, self.data)
        models = active.application.models
        known = self.valid_data
        duplicates = [unsaved.token for unsaved in self.unsaved if unsaved.name and unsaved.name in known]
        if duplicates:
            self.unsaved = [unsaved for unsaved in self.unsaved if not unsaved.name or unsaved.name not in known]
        for unsaved in self.unsaved:
            losses = {model: loss for model, loss in unsaved.losses.items() if model in models}
            state = active.policy.observe(state, unsaved.selection, losses)
        self.state = state
        return duplicates

    def start_write(self, writer: int, number: int, shared: bool) -> RecordChange:
        """Return the change that writes the present state, as write `number` of `writer`."""
        writers = {writer: number}
        if shared and self.writers:
            writers = {**self.writers}
            writers.pop(writer, None)
            writers[writer] = number
            if len(writers) > WRITERS:
                del writers[next(iter(writers))]
        self.writers, self.write_number, self.sent, self.dirty = writers, number, len(self.unsaved), False
        unsaved = self.unsaved
        names = unsaved[0].name if len(unsaved) == 1 else b"".join([each.name for each in unsaved[-MAX_NAMES:]])
        # The last bytes of a record are its names. Reading more than it has returns bytes of the state, which match no
        # name.
        names = ((self.valid_data or NO_NAMES) + names)[-max(len(names), len(NO_NAMES)) :]
        data = _encode(ContextRecord(self.active.revision, writers, self.state, names))
        self.change = RecordChange(self.key, self.version, data)
        return self.change

    def finish_write(self, change: RecordChange, version: int) -> list[Any]:
        """Record that the write succeeded. Return the tokens of the saved observations."""
        self.change, self.version, self.data, self.damage = None, version, change.data or b"", ""
        return self._pop_sent()

    def resolve_conflict(self, writer: int, record: Record) -> list[Any]:
        """Rebase on `record`, which was written first. Return the tokens of observations that it contains.

        If the record names this write, an earlier attempt succeeded and only its reply was lost.
        """
        self.change = None
        writers = read_context(self.active, record.data).writers if record.version else {}
        own = writers.get(writer) == self.write_number
        tokens = self._pop_sent() if own else []
        self.sent = 0
        return tokens + self.rebase(record)

    def _pop_sent(self) -> list[Any]:
        tokens = [unsaved.token for unsaved in self.unsaved[: self.sent]]
        del self.unsaved[: self.sent]
        self.sent = 0
        return tokens
