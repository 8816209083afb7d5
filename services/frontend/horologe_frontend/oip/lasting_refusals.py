"""Refusals that last: of requests that the controller would refuse like the last one, only a few are sent to it.

A refusal on arrival states when the next place in the queue becomes free, and how long every further place takes. Until
the first place is free, requests of the same kind get the same refusal at once. From then on, two are sent to the
controller for each place, because devices may be faster than predicted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.clock import ms

if TYPE_CHECKING:
    from horologe_frontend.http.http_messages import HttpResponse
    from horologe_frontend.oip.known_requests import RequestTemplate

    Kind = tuple[str, RequestTemplate]
    """The client, and the text of its request without the values of its tensors. It states the model, the number of
    rows and the deadline."""

LIMIT = 1024
SENT_PER_PLACE = 2
MEMORY_NS = ms(100)
"""Time after the last refusal from which on every request is sent to the controller."""


class LastingRefusal(msgspec.Struct):
    """The response to a kind of request, and when the next request of this kind is sent to the controller."""

    response: HttpResponse
    next_ns: int
    step_ns: int
    end_ns: int


class LastingRefusals:
    """The lasting refusals of at most `limit` kinds of requests."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.end_ns = 0
        """When the last refusal ends."""
        self._limit = limit
        self._refusals: dict[Kind, LastingRefusal] = {}

    def add(self, now_ns: int, kind: Kind, response: HttpResponse, next_ns: int, place_ns: int) -> None:
        """Store a refusal. The first place becomes free at `next_ns`, another one after each `place_ns`.

        If it exceeds the limit, drop all others: they end in a few milliseconds anyway.
        """
        self.end_ns = now_ns + MEMORY_NS
        if (known := self._refusals.get(kind)) is not None:
            next_ns = max(next_ns, known.next_ns)
        elif len(self._refusals) >= self._limit:
            self._refusals.clear()
        self._refusals[kind] = LastingRefusal(response, next_ns, max(1, place_ns // SENT_PER_PLACE), self.end_ns)

    def find(self, now_ns: int, kind: Kind) -> HttpResponse | None:
        """Return the response to a request that arrives now, or None: it is sent to the controller."""
        refusal = self._refusals.get(kind)
        if refusal is None or now_ns >= refusal.end_ns:
            return None
        if now_ns < refusal.next_ns:
            return refusal.response
        refusal.next_ns += refusal.step_ns
        return None
