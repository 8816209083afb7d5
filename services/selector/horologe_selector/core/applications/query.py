"""Application queries: the models that the policy selects are queried, and combined at the deadline at the latest.

Clipper section 5.2.2: rendering a late prediction is worse than rendering an inaccurate one.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.application_answers import NONCE_BYTES, selector_mark
from horologe_common.clock import ms, s
from horologe_common.core.faults import for_each
from horologe_common.core.indexed_heap import IndexedHeap
from horologe_common.core.protocol import Out
from horologe_common.status import InvalidInput, Status
from horologe_common.wire import Answer, Release
from horologe_selector.core.applications.combine import build_answer
from horologe_selector.core.predictions.cache import prediction_key
from horologe_selector.core.predictions.inflight import OK, PredictionResult, Waiter
from horologe_selector.core.predictions.tensor_values import extract_values
from horologe_selector.policy import CombinedPrediction, Selection, StickyRandom

if TYPE_CHECKING:
    from horologe_common.wire import Query
    from horologe_selector.core.applications.active_application import ActiveApplication
    from horologe_selector.core.contexts.contexts import Contexts
    from horologe_selector.core.shared_parts import SharedParts
    from horologe_selector.policy import RandomSource

TIMER_DELAY_NS = ms(1)
"""Largest delay of the loop's timers."""
LINGER_NS = s(1)
"""Time after the answer during which the query waits for stragglers and shadows, whose predictions feedback needs."""


class ApplicationQuery(msgspec.Struct, eq=False):
    """Open query of an application.

    Each queried model is in one of three dictionaries: `pending` while its prediction is in flight, `results` after a
    prediction, `failures` after a failure. `values` holds the predictions of `results` by row.
    """

    id: int
    holder: str
    query: Query
    active: ActiveApplication
    arrival_ns: int
    deadline_ns: int
    prediction: bytes
    token: int = 0
    """Token of feedback that needs the predictions again; 0 if a client waits for an answer."""
    selection: Selection = Selection(())
    pending: dict[str, Waiter] = {}
    results: dict[str, PredictionResult] = {}
    values: dict[str, tuple[float, ...]] = {}
    failures: dict[str, PredictionResult] = {}
    cache_keys: dict[str, bytes] = {}
    combined: tuple[CombinedPrediction, ...] = ()
    answered: bool = False

    def is_waiting(self) -> bool:
        """Return True while the prediction of a selected model is in flight. Shadows do not count."""
        return any(model in self.pending for model in self.selection.models)


class ApplicationQueries:
    """Open application queries.

    Invariant: each query gets exactly one Answer, unless its holder cancels it, and its inputs are released.
    """

    def __init__(self, parts: SharedParts, random_source: RandomSource, contexts: Contexts) -> None:
        self.deadlines: IndexedHeap[Any, int] = IndexedHeap()
        self.finished: list[ApplicationQuery] = []
        """Queries answered or predicted again since the core last cleared the list."""
        self._key = int(random_source.random() * (1 << 53)).to_bytes(8, "big") + parts.address.encode()[-48:]
        self._mark = selector_mark(parts.address)
        self._random_source = random_source
        self._inflight = parts.inflight
        self._contexts = contexts
        self._models = parts.models
        self._return_latency = parts.return_latency
        self._post = parts.post
        self._queries: dict[int, ApplicationQuery] = {}
        self._by_input: dict[tuple[str, int], int] = {}
        self._waiting_for_state: dict[tuple[str, str], list[int]] = {}
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._queries)

    def on_query(
        self,
        now_ns: int,
        holder: str,
        query: Query,
        active: ActiveApplication,
        token: int = 0,
        selection: Selection | None = None,
    ) -> None:
        """Open a query; it starts when the state of its context is known. `selection` overrides the policy's.

        Ignore a query that is open already. Answer one again whose answer was sent but stragglers are in flight: the
        holder sends it again only if the answer was lost.
        """
        if (earlier := self._queries.get(self._by_input.get((holder, query.id), 0))) is not None:
            if not earlier.answered:
                return
            self._cancel(now_ns, earlier, release=False)
        self._last_id += 1
        # At most half of the budget: a stall of 400 ms stays in the 99th percentile of pings for 20 s, and would leave
        # no time until then.
        return_ns = min(self._return_latency.p99_ns(now_ns, holder) + TIMER_DELAY_NS, query.budget_ns // 2)
        deadline_ns = now_ns + max(0, query.budget_ns - return_ns)
        prediction = self._mark + self._nonce() + query.input_hash
        opened = ApplicationQuery(self._last_id, holder, query, active, now_ns, deadline_ns, prediction, token)
        opened.selection = selection or opened.selection
        self._queries[opened.id] = opened
        self._by_input[holder, query.id] = opened.id
        self.deadlines.push(opened.id, deadline_ns)
        if self._contexts.get_state(now_ns, active, query.context) is None:
            self._waiting_for_state.setdefault((active.application.name, query.context), []).append(opened.id)
        else:
            self._start_query(now_ns, opened)

    def _nonce(self) -> bytes:
        """Return an unpredictable nonce. A client that could predict it could give feedback on others' answers."""
        return hashlib.blake2b(self._last_id.to_bytes(8, "big"), digest_size=NONCE_BYTES, key=self._key).digest()

    def on_state_ready(self, now_ns: int, name: str, context: str) -> None:
        """Start the queries that wait for this context's state, which has been read or cannot be."""
        waiting = [self._queries.get(number) for number in self._waiting_for_state.pop((name, context), ())]
        open_queries = [query for query in waiting if query is not None and not query.answered]
        for_each(open_queries, lambda query: self._start_query(now_ns, query))

    def _start_query(self, now_ns: int, query: ApplicationQuery) -> None:
        active, context = query.active, query.query.context
        if not query.selection.models:
            sticky = active.policy.sticky and context
            random_source = StickyRandom(context) if sticky else self._random_source
            try:
                query.selection = active.policy.select(self._policy_state(now_ns, query), random_source)
            except Exception as error:
                self._fail_query(now_ns, query, error)
                raise
        for model in query.selection.models:
            self._request_model(now_ns, query, model, shadow=False)
        if not query.token:
            for model in active.application.shadows:
                self._request_model(now_ns, query, model, shadow=True)
        if not query.is_waiting():
            self._answer_query(now_ns, query)

    def _policy_state(self, now_ns: int, query: ApplicationQuery) -> object:
        """Return the policy's state for the context; that of a new context if the store is unavailable."""
        state = self._contexts.get_state(now_ns, query.active, query.query.context)
        return query.active.policy.init() if state is None else state

    def _request_model(self, now_ns: int, query: ApplicationQuery, model: str, shadow: bool) -> None:
        spec = self._models.find_ready(model)
        if spec is None:
            status, reason = self._models.explain_missing(model)
            self._record_result(query, model, PredictionResult(int(status), reason=reason))
            return
        shared = query.active.application.cache
        key = prediction_key(spec, query.query.input_hash if shared else query.prediction)
        query.cache_keys[model] = key
        waiter = Waiter(query.holder, query.query, now_ns, query.deadline_ns, query.id, model, shadow)
        result = self._inflight.request_prediction(now_ns, waiter, spec, spec.key, key)
        if result is None:
            query.pending[model] = waiter
        else:
            self._record_result(query, model, result)

    def on_result(self, now_ns: int, waiter: Waiter, result: PredictionResult) -> None:
        """Record the prediction or failure of one model; answer the query if it was the last selected one."""
        query = self._queries.get(waiter.application_query)
        if query is None:
            return
        del query.pending[waiter.model]
        self._record_result(query, waiter.model, result)
        if not query.answered:
            if not query.is_waiting():
                self._answer_query(now_ns, query)
        elif not query.pending:
            self._remove_query(query, release=True)

    def _record_result(self, query: ApplicationQuery, model: str, result: PredictionResult) -> None:
        active = query.active
        if result.status == OK and active.application.task != "any":
            try:
                values = extract_values(active.application, result.outputs, result.buffers)
                if len(values) != query.query.rows:
                    raise InvalidInput(f"model {model}: got {len(values)} predictions, wanted {query.query.rows}")
            except InvalidInput as error:
                result = PredictionResult(int(Status.FAILED), reason=error.reason)
            else:
                query.values[model] = values
                active.fallbacks[model].add_predictions(values)
        if result.status != OK:
            query.failures[model] = result
            return
        query.results[model] = result
        if query.answered:
            active.count_answer(model, query.values.get(model, ()), query.combined)

    def _answer_query(self, now_ns: int, query: ApplicationQuery) -> None:
        """Answer with the present predictions. Stragglers may take `LINGER_NS` longer, for later feedback.

        If the policy raises, the answer is FAILED, and the error is raised again.
        """
        query.answered = True
        if not query.token:
            try:
                answer, buffers, query.combined = build_answer(now_ns, query, self._policy_state(now_ns, query))
            except Exception as error:
                self._fail_query(now_ns, query, error)
                raise
            self._post(Out(query.holder, answer, buffers))
            active = query.active
            for model in query.results:
                active.count_answer(model, query.values.get(model, ()), query.combined)
            for model in query.selection.models:
                if model not in query.results:
                    active.count_missing(model)
        self.finished.append(query)
        if query.pending:
            self.deadlines.push(query.id, max(now_ns, query.deadline_ns) + LINGER_NS)
        else:
            self._remove_query(query, release=bool(query.token))

    def _fail_query(self, now_ns: int, query: ApplicationQuery, error: Exception) -> None:
        """Answer FAILED, because the application's policy has raised."""
        if not query.token:
            query.answered = True
            name, reason = query.active.application.name, f"policy: {type(error).__name__}: {error}"
            self._post(Out(query.holder, Answer(query.query.id, int(Status.FAILED), (), reason, model=name)))
        self._cancel(now_ns, query)

    def tick(self, now_ns: int) -> None:
        """Answer queries at their deadline; cancel answered ones whose stragglers took too long."""
        for_each(self.deadlines.pop_up_to(now_ns), lambda number: self._expire(now_ns, self._queries[number]))

    def _expire(self, now_ns: int, query: ApplicationQuery) -> None:
        if query.answered:
            self._cancel(now_ns, query)
        else:
            self._answer_query(now_ns, query)

    def cancel_query(self, now_ns: int, holder: str, query_id: int) -> bool:
        """Drop a query without an answer. Return False if it is no open application query."""
        query = self._queries.get(self._by_input.get((holder, query_id), 0))
        if query is not None:
            self._cancel(now_ns, query)
        return query is not None

    def cancel_holder(self, now_ns: int, holder: str) -> None:
        """Drop all queries of a lost holder, the newest first.

        Where many queries share one in-flight prediction, its leader came first. Dropping the leader last promotes no
        follower that is about to be dropped itself.
        """
        for address, query_id in [key for key in reversed(self._by_input) if key[0] == holder]:
            self.cancel_query(now_ns, address, query_id)

    def _cancel(self, now_ns: int, query: ApplicationQuery, release: bool = True) -> None:
        for waiter in query.pending.values():
            self._inflight.remove_waiter(now_ns, waiter)
        if query.token and not query.answered:
            self.finished.append(query)
        self._remove_query(query, release)

    def _remove_query(self, query: ApplicationQuery, release: bool) -> None:
        del self._queries[query.id]
        del self._by_input[query.holder, query.query.id]
        self.deadlines.remove(query.id)
        if release:
            self._post(Out(query.holder, Release((query.query.id,))))

    def check(self) -> None:
        assert set(self._by_input.values()) == set(self._queries)
        assert len(self.deadlines) == len(self._queries)
        assert all(query.pending or not query.answered for query in self._queries.values())
