"""What a state store is: records under keys, replaced only by those who have read them. Implementations: stores/.

Blocking; a thread of its own calls it (keeper.py), so that the selector's loop never waits. What the core and that
thread tell each other are the messages below, which never cross a socket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence


class Record(msgspec.Struct, frozen=True, gc=False):
    """`version` is at least 1 and grows with every write to the store: no key ever has the same one twice, not even if
    it was deleted in between, and what was written the longest ago has the least."""

    key: str
    version: int
    data: bytes
    whole: ClassVar[bool] = True
    """As all of what is kept here: recorded as it is (snapshot.py)."""


class Change(msgspec.Struct, frozen=True, gc=False):
    """Replace version `version` of this key (0: there is none); `data` None deletes it."""

    key: str
    version: int
    data: bytes | None
    whole: ClassVar[bool] = True


class Away(Exception):
    """The store cannot be reached or written. What was to be written may have been, if the answer alone was lost."""


class StateStore(Protocol):
    """All methods raise `Away`. Keys are texts; those of a family share what is in front of the first newline."""

    shared: bool
    """Whether other selectors may write to it too."""
    name: str
    """Where it is, for the log."""

    def read(self, keys: Sequence[str]) -> list[Record | None]:
        """As they are now; None where there is none."""

    def write(self, changes: Sequence[Change]) -> list[int | Record]:
        """One transaction, durable on return, in which each stands or falls on its own: the new version where it was
        done (0: deleted), else the record that is there instead (its version 0, if there is none)."""

    def family(self, name: str) -> list[Record]:
        """All records whose key begins with `name` and a newline."""

    def trim(self, name: str, limit: int) -> int:
        """Delete those of a family written the longest ago, down to `limit`; how many."""

    def close(self) -> None: ...


class Read(msgspec.Struct, frozen=True):
    """Core to keeper; answered by `Found` with the same keys."""

    keys: tuple[str, ...]


class Found(msgspec.Struct, frozen=True):
    keys: tuple[str, ...]
    records: list[Record | None] | None
    """None: the store is away."""


class Write(msgspec.Struct, frozen=True):
    """Core to keeper; answered by `Written`."""

    changes: tuple[Change, ...]


class Written(msgspec.Struct, frozen=True):
    changes: tuple[Change, ...]
    results: list[int | Record] | None
    """As `write` returns. None: the store is away, and nothing of it is known to be kept."""
    reason: str = ""


class List(msgspec.Struct, frozen=True):
    """Core to keeper; answered by `Listed`."""

    family: str


class Listed(msgspec.Struct, frozen=True):
    family: str
    records: list[Record] | None


class Trim(msgspec.Struct, frozen=True):
    """Core to keeper; not answered. Limit 0 deletes the family."""

    family: str
    limit: int
