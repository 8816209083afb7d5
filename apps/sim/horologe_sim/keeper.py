"""The keeper of the selector's records, in memory: answers in the turn in which it is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from horologe_selector.registry import FAMILY, Kept
from horologe_selector.store import Found, List, Listed, Read, Record, Write, Written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.applications import Application


class Keeper:
    """Begins with these applications declared."""

    def __init__(self, applications: Sequence[Application]) -> None:
        self.records = {
            key: Record(key, 1, msgspec.msgpack.encode(Kept(1, [application])))
            for application in applications for key in (f"{FAMILY}\n{application.name}",)
        }  # fmt: skip

    def serve(self, message: Any) -> list[Any]:
        """The reply, if there is one."""
        match message:
            case List():
                return [
                    Listed(
                        message.family,
                        [one for key, one in self.records.items() if key.startswith(message.family + "\n")],
                    )
                ]
            case Read():
                return [Found(message.keys, [self.records.get(key) for key in message.keys])]
            case Write():
                for change in message.changes:
                    self.records.pop(change.key, None)
                    if change.data is not None:
                        self.records[change.key] = Record(change.key, change.version + 1, change.data)
                return [Written(message.changes, [None] * len(message.changes))]
        return []
