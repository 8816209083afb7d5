"""Queries for one model: each has a prediction of its own, and is answered with that, whatever it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.core.protocol import Out
from horologe_common.wire import Answer, Release
from horologe_selector.core.predictions.cache import prediction_key
from horologe_selector.core.predictions.flight import OK, Waiter

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_common.wire import Query
    from horologe_selector.core.catalogue import Catalogue
    from horologe_selector.core.predictions.flight import Landing
    from horologe_selector.core.predictions.inflight import Flights


class PlainQueries:
    """Law: every query taken is answered once, unless its frontend withdraws it."""

    def __init__(self, flights: Flights, catalogue: Catalogue, post: Callable[[Out], None]) -> None:
        self._flights = flights
        self._catalogue = catalogue
        self._post = post
        self._waiters: dict[tuple[str, int], Waiter] = {}

    def ask(self, now_ns: int, frontend: str, query: Query) -> None:
        """Take a query; its answer may be out at once."""
        waiter = Waiter(frontend, query, now_ns, now_ns + query.budget_ns)
        spec = self._catalogue.known.get(query.model)
        cache_key = prediction_key(spec, query.input_hash) if query.input_hash and spec is not None else b""
        landing = self._flights.ask(now_ns, waiter, spec, query.model, cache_key)
        if landing is None:
            self._waiters[frontend, query.id] = waiter
        else:
            self._answer(now_ns, waiter, landing)

    def landed(self, now_ns: int, waiter: Waiter, landing: Landing) -> None:
        """Its prediction, or that there will be none."""
        del self._waiters[waiter.frontend, waiter.query.id]
        self._answer(now_ns, waiter, landing)

    def _answer(self, now_ns: int, waiter: Waiter, landing: Landing) -> None:
        query = waiter.query
        name, _, version = query.model.partition("/")
        queue_ns = max(0, now_ns - waiter.arrival_ns - landing.exec_ns) if landing.status == OK and waiter.flight else 0
        self._post(
            Out(
                waiter.frontend,
                Answer(
                    query.id,
                    landing.status,
                    landing.outputs,
                    landing.reason,
                    landing.retry_after_ns,
                    name,
                    version,
                    queue_ns,
                    landing.exec_ns,
                    landing.batch_size,
                    landing.cached,
                ),
                landing.buffers,
            )
        )

    def abandon(self, now_ns: int, frontend: str, query_id: int) -> None:
        """The frontend does not wait any more."""
        if waiter := self._waiters.pop((frontend, query_id), None):
            self._flights.leave(now_ns, waiter)
        self._post(Out(frontend, Release((query_id,))))

    def gone(self, now_ns: int, frontend: str) -> None:
        """Those that came last first: see `Ensembles.gone`."""
        for address, query_id in [key for key in reversed(self._waiters) if key[0] == frontend]:
            self.abandon(now_ns, address, query_id)

    def check(self) -> None:
        waiters = [waiter for waiter in self._flights.waiters() if not waiter.ensemble]
        assert sorted(self._waiters) == sorted((waiter.frontend, waiter.query.id) for waiter in waiters)
