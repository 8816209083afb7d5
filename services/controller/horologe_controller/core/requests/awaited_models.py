"""Submits for models that are loading, or that no worker has registered yet, while further workers may register."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_common.core.indexed_heap import IndexedHeap
from horologe_common.core.protocol import Out
from horologe_common.status import Status
from horologe_common.wire import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    from horologe_common.wire import Submit
    from horologe_controller.core.model_catalogue import ModelCatalogue

Arrived = tuple[str, "Submit", int]
"""(sender, message, arrival)"""


class AwaitedModels:
    """At most `limit` Submits by sender and id, each with a timer.

    Invariant: every Submit is rejected once, or leaves once by one of the `pop` methods.
    """

    def __init__(self, catalogue: ModelCatalogue, limit: int, post: Callable[[Out], None]) -> None:
        self.submits: dict[tuple[str, int], Arrived] = {}
        self._timers: IndexedHeap[Any, int] = IndexedHeap()
        self._catalogue = catalogue
        self._limit = limit
        self._post = post

    def hold_or_reject(self, arrived: Arrived, until_ns: int) -> None:
        """Hold a Submit until its model can be served, at most until `until_ns`. Reject it if no worker has the model.

        Ignore one that is held already.
        """
        sender, submit, _ = arrived
        key = sender, submit.id
        reason = self._catalogue.explain_missing(submit.model)
        if not reason:
            self._reject(sender, submit, Status.UNKNOWN_MODEL, f"model {submit.model!r}: not served now")
        elif len(self.submits) >= self._limit:
            self._reject(sender, submit, Status.REFUSED, reason)
        elif key not in self.submits:
            self.submits[key] = arrived
            self._timers.push(key, until_ns)

    def refuse_expired(self, now_ns: int) -> None:
        """Refuse the Submits whose model could not be served by their deadline."""
        for key in self._timers.pop_up_to(now_ns):
            sender, submit, _ = self.submits.pop(key)
            self._reject(sender, submit, Status.REFUSED, self._catalogue.explain_missing(submit.model))

    def _reject(self, sender: str, submit: Submit, status: Status, reason: str) -> None:
        self._post(Out(sender, Outcome(submit.id, int(status), reason)))

    def next_ns(self) -> int | None:
        """Return when `refuse_expired` is due, or discovery ends without another worker; None: never."""
        end_ns, timer_ns = self._catalogue.discovery.end_ns(), self._timers.smallest_priority()
        return timer_ns if end_ns is None or (timer_ns is not None and timer_ns < end_ns) else end_ns

    def pop_admissible(self, models: Container[str]) -> list[Arrived]:
        """Remove and return the Submits for these models, and for those for which nothing can be awaited any more."""
        waits = self._catalogue.explain_missing
        held = [(key, submit.model) for key, (_, submit, _) in self.submits.items()]
        return [self._pop(key) for key, model in held if model in models or not waits(model)]

    def pop_cancelled(self, sender: str, submit_ids: Sequence[int]) -> list[Arrived]:
        """Remove and return the Submits of a sender with these ids."""
        return [self._pop((sender, number)) for number in submit_ids if (sender, number) in self.submits]

    def pop_sender(self, sender: str) -> list[Arrived]:
        """Remove and return the Submits of a sender that has disconnected."""
        return [self._pop(key) for key in list(self.submits) if key[0] == sender]

    def _pop(self, key: tuple[str, int]) -> Arrived:
        self._timers.remove(key)
        return self.submits.pop(key)

    def check(self) -> None:
        self._timers.check()
        assert len(self._timers) == len(self.submits)
