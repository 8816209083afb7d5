"""The selectors that can be reached, and which of them is asked. Pure.

What belongs together goes to the same one, so that predictions and contexts stay where they are in memory: to the one
with the greatest hash of its name and what is asked about (rendezvous hashing: Thaler and Ravishankar, IEEE/ACM
Transactions on Networking 6(1), 1998). Where one goes, only what it had goes to others, and back to its successor.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from horologe_common.core.protocol import instance
from horologe_common.prediction_id import MARK_BYTES, selector_mark

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.wire import Query
    from horologe_frontend.core.applications import Declared


class Selectors:
    """Addresses, of this incarnation each. An empty one for an answer: there is none to ask."""

    def __init__(self, declared: Declared) -> None:
        self._declared = declared
        self._live: list[str] = []
        self._marks: dict[bytes, str] = {}
        self._turn = 0

    def __bool__(self) -> bool:
        return bool(self._live)

    def __contains__(self, address: str) -> bool:
        return address in self._live

    def joined(self, address: str) -> None:
        if address not in self._live:
            self._live.append(address)
        self._marks[selector_mark(address)] = address

    def gone(self, address: str) -> None:
        if address in self._live:
            self._live.remove(address)
            del self._marks[selector_mark(address)]
        self._declared.gone(address)

    def for_query(self, query: Query) -> str:
        """A model's goes to any: where it may be cached always to the same, else to each in turn."""
        if not query.model:
            return self.for_context(query.application, query.context)
        if query.input_hash:
            return chosen(self._live, query.input_hash)
        self._turn += 1
        return self._live[self._turn % len(self._live)] if self._live else ""

    def for_context(self, application: str, context: str) -> str:
        """Of those that serve the application as it is declared now."""
        return chosen(self._declared.announcers(application), f"{application}\0{context}".encode())

    def for_prediction(self, application: str, prediction: bytes, context: str) -> str:
        """The one that has predicted it, as long as that is there: it remembers what, and for which context."""
        whose = self._marks.get(prediction[:MARK_BYTES], "")
        if whose in self._declared.announcers(application):
            return whose
        return self.for_context(application, context)

    def for_declaration(self, application: str, context: str = "") -> str:
        """One that knows it as it is declared now; of what is not declared, any."""
        return self.for_context(application, context) or chosen(self._live, application.encode())


def chosen(addresses: Sequence[str], key: bytes) -> str:
    """Always the same for a key, while it is there."""
    if len(addresses) < 2:
        return addresses[0] if addresses else ""
    return max(addresses, key=lambda address: (_rank(address, key), address))


def _rank(address: str, key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=8, key=instance(address).encode()[-64:]).digest()
