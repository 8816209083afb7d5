"""Queries for one model. Each is answered with its prediction, or with the status of its failure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.core.protocol import Out
from horologe_common.wire import Answer, Release
from horologe_selector.core.predictions.cache import prediction_key
from horologe_selector.core.predictions.inflight import OK, Waiter

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_common.wire import Query
    from horologe_selector.core.announced_models import AnnouncedModels
    from horologe_selector.core.predictions.inflight import InflightPredictions, PredictionResult


class SingleModelQueries:
    """Open queries for one model. Invariant: each query gets exactly one Answer, unless its holder cancels it."""

    def __init__(self, inflight: InflightPredictions, models: AnnouncedModels, post: Callable[[Out], None]) -> None:
        self._inflight = inflight
        self._models = models
        self._post = post
        self._waiters: dict[tuple[str, int], Waiter] = {}

    def on_query(self, now_ns: int, holder: str, query: Query) -> None:
        """Answer the query from the cache, or wait for its prediction. Ignore a query that is open already.

        A frontend sends its open queries again when it reconnects, perhaps before this selector noticed its loss.
        """
        if (holder, query.id) in self._waiters:
            return
        waiter = Waiter(holder, query, now_ns, now_ns + query.budget_ns)
        spec = self._models.versions.get(query.model)
        cache_key = prediction_key(spec, query.input_hash) if query.input_hash and spec is not None else b""
        result = self._inflight.request_prediction(now_ns, waiter, spec, query.model, cache_key)
        if result is None:
            self._waiters[holder, query.id] = waiter
        else:
            self._answer(now_ns, waiter, result)

    def on_result(self, now_ns: int, waiter: Waiter, result: PredictionResult) -> None:
        """Answer the query with its prediction or failure."""
        del self._waiters[waiter.holder, waiter.query.id]
        self._answer(now_ns, waiter, result)

    def _answer(self, now_ns: int, waiter: Waiter, result: PredictionResult) -> None:
        query = waiter.query
        name, _, version = query.model.partition("/")
        computed = result.status == OK and waiter.inflight_id
        queue_ns = max(0, now_ns - waiter.arrival_ns - result.exec_ns) if computed else 0
        self._post(
            Out(
                waiter.holder,
                Answer(
                    query.id,
                    result.status,
                    result.outputs,
                    result.reason,
                    result.retry_after_ns,
                    name,
                    version,
                    queue_ns,
                    result.exec_ns,
                    result.batch_size,
                    result.cached,
                ),
                result.buffers,
            )
        )

    def cancel_query(self, now_ns: int, holder: str, query_id: int) -> None:
        """Drop a query without an answer, and release its inputs."""
        if waiter := self._waiters.pop((holder, query_id), None):
            self._inflight.remove_waiter(now_ns, waiter)
        self._post(Out(holder, Release((query_id,))))

    def cancel_holder(self, now_ns: int, holder: str) -> None:
        """Drop all queries of a lost holder, the newest first (see `ApplicationQueries.cancel_holder`)."""
        for address, query_id in [key for key in reversed(self._waiters) if key[0] == holder]:
            self.cancel_query(now_ns, address, query_id)

    def check(self) -> None:
        waiters = [waiter for waiter in self._inflight.waiters() if not waiter.application_query]
        assert sorted(self._waiters) == sorted((waiter.holder, waiter.query.id) for waiter in waiters)
