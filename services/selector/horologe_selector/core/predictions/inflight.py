"""In-flight predictions of single models: answered from the cache, coalesced with an equal one, or submitted.

An in-flight prediction is one Submit to the controller. Equal queries that arrive meanwhile follow it, which is called
request coalescing or single flight.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from horologe_common.clock import NEVER_NS
from horologe_common.core.protocol import Out
from horologe_common.status import Status
from horologe_common.wire import Cancel, EndStreams, Outcome, Outputs, StreamStep, Submit, Tensor
from horologe_common.wire.frames import split_batch
from horologe_selector.core.predictions.cache import PredictionCache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from horologe_common.core.instruments import Stats
    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec
    from horologe_common.wire import Query
    from horologe_selector.settings import SelectorSettings

OK = int(Status.OK)
ANSWERED_WITHOUT_OUTPUTS = frozenset({int(Status.FAILED), int(Status.TOO_LARGE)})
"""Final statuses of rows that a worker has run. To run them again would give the same."""


class Waiter(msgspec.Struct, eq=False):
    """Query that waits for a prediction of one model: a model query, or `model` of an application query.

    `holder` stages the query's inputs under the query's id. `deadline_ns` is in this host's clock.
    """

    holder: str
    query: Query
    arrival_ns: int
    deadline_ns: int
    application_query: int = 0
    """Id of the application query; 0 for a model query."""
    model: str = ""
    shadow: bool = False
    submit_id: int = 0
    """Submit of the prediction that it waits for; 0 if it was answered from the cache."""
    pipeline_call: int = 0
    """Id of the staged inputs of a pipeline's call; 0 for other queries."""
    sequence: int = 0
    """Key among the followers of its in-flight prediction."""
    step: StreamStep | None = None
    """The step of a stream that it is; for a pipeline, its run. None: it is not for a stream."""

    @property
    def best_effort(self) -> bool:
        """True if requests with a deadline are served first."""
        return self.shadow or self.query.best_effort

    def can_follow(self, leader: Waiter, now_ns: int) -> bool:
        """Return True if the leader's deadline is early enough for this waiter.

        It may be later by a quarter of the remaining time. Otherwise a small drop of the measured return latency
        would move deadlines and prevent coalescing.
        """
        if leader.best_effort:
            return self.best_effort
        return leader.deadline_ns <= self.deadline_ns + max(0, self.deadline_ns - now_ns) // 4


class InflightPrediction(msgspec.Struct, eq=False):
    """Submit in flight for the leader's inputs, and the followers, which have equal inputs.

    `leader_heap` orders followers for promotion to leader, the most urgent first. Entries of followers that have left
    stay in it until they are popped, so removing a follower is a dictionary operation.
    """

    key: str
    cache_key: bytes
    content_hash: str
    """Content of the model in `cache_key`."""
    ttl_ns: int
    leader: Waiter
    followers: dict[int, Waiter] = {}
    leader_heap: list[tuple[bool, int, int]] = []
    submit_id: int = 0

    def add_follower(self, sequence: int, waiter: Waiter) -> None:
        """Add a follower; `sequence` must be greater than all before."""
        waiter.submit_id, waiter.sequence = self.submit_id, sequence
        self.followers[sequence] = waiter
        heapq.heappush(self.leader_heap, (waiter.best_effort, waiter.deadline_ns, sequence))

    def promote_follower(self) -> bool:
        """Make the most urgent follower the leader. Return False if there is none."""
        while self.leader_heap:
            sequence = heapq.heappop(self.leader_heap)[2]
            if (waiter := self.followers.pop(sequence, None)) is not None:
                self.leader = waiter
                return True
        return False


class PredictionResult(NamedTuple):
    """End of a prediction; `outputs` and `buffers` are empty unless the status is OK."""

    status: int
    outputs: tuple[Tensor, ...] = ()
    buffers: Sequence[Buffer] = ()
    reason: str = ""
    retry_after_ns: int = 0
    exec_ns: int = 0
    batch_size: int = 0
    cached: bool = False
    content_hash: str = ""
    """Content of the model that made the prediction. Empty: not known."""
    more: bool = False
    """The outputs are an item of a stream, and more may follow. Without outputs, the item needs further steps."""
    worker: str = ""
    """Worker and share that ran a step of a stream."""
    share: int = 0


class InflightPredictions:
    """All in-flight predictions. Invariant: each waiter gets exactly one `deliver`, unless it is removed first.

    Predictions of `pipelines` are submitted to this selector itself, at `address`.
    """

    def __init__(
        self,
        address: str,
        settings: SelectorSettings,
        pipelines: Mapping[str, ModelSpec],
        stats: Stats,
        post: Callable[[Out], None],
        deliver: Callable[[int, Waiter, PredictionResult], None],
    ) -> None:
        self.cache = PredictionCache(settings.cache_bytes)
        self._ttl_ns = settings.cache_ttl_ns
        self.controller = ""
        self.address = address
        self._pipelines = pipelines
        self._stats = stats
        self._post = post
        self._deliver = deliver
        self._inflight: dict[int, InflightPrediction] = {}
        """In-flight predictions by the id of their Submit."""
        self._by_cache_key: dict[bytes, int] = {}
        self._last_id = 0

    def request_prediction(
        self, now_ns: int, waiter: Waiter, spec: ModelSpec | None, key: str, cache_key: bytes
    ) -> PredictionResult | None:
        """Return the cached prediction, or None after the waiter was added to an in-flight prediction.

        An empty `cache_key` disables caching and request coalescing.
        """
        if cache_key and spec is not None:
            if entry := self.cache.fetch(now_ns, cache_key):
                self._stats.count("nv_cache_num_hits_per_model", spec.name, spec.version)
                return PredictionResult(OK, entry.outputs, entry.buffers, cached=True, content_hash=spec.content_hash)
            inflight = self._inflight.get(self._by_cache_key.get(cache_key, 0))
            if inflight is not None and waiter.can_follow(inflight.leader, now_ns):
                self._stats.count("nv_cache_num_hits_per_model", spec.name, spec.version)
                self._last_id += 1
                inflight.add_follower(self._last_id, waiter)
                return None
            self._stats.count("nv_cache_num_misses_per_model", spec.name, spec.version)
        ttl_ns, content_hash = (spec.cache_ttl_ns, spec.content_hash) if spec else (0, "")
        self._start_prediction(now_ns, InflightPrediction(key, cache_key, content_hash, ttl_ns, waiter))
        return None

    def _start_prediction(self, now_ns: int, inflight: InflightPrediction, followers: Sequence[Waiter] = ()) -> None:
        self._last_id = number = self._last_id + 1
        inflight.submit_id = inflight.leader.submit_id = number
        self._inflight[number] = inflight
        for waiter in followers:
            self._last_id += 1
            inflight.add_follower(self._last_id, waiter)
        if inflight.cache_key:
            self._by_cache_key[inflight.cache_key] = number
        self._submit(now_ns, inflight)

    def _submit(self, now_ns: int, inflight: InflightPrediction) -> None:
        """Submit to the controller, or when the next controller connects if none is connected."""
        leader, query, key = inflight.leader, inflight.leader.query, inflight.key
        if not (receiver := self.address if key in self._pipelines else self.controller):
            return
        number, budget_ns, holder = inflight.submit_id, leader.deadline_ns - now_ns, leader.holder
        rows, best_effort, shape, length = query.rows, leader.best_effort, query.shape_key, query.length
        submit = Submit(
            number,
            key,
            budget_ns,
            rows,
            holder,
            query.id,
            best_effort,
            shape,
            length,
            query.application,
            traceparent=query.traceparent,
            client=query.client,
            step=leader.step if leader.step is None or leader.step.number > 1 else StreamStep(number, 1),
        )
        self._post(Out(receiver, submit))

    def on_controller_connected(self, now_ns: int, controller: str) -> None:
        """Submit all in-flight predictions of models to a controller, which may be a new incarnation."""
        self.controller = controller
        for inflight in self._inflight.values():
            if inflight.key not in self._pipelines:
                self._submit(now_ns, inflight)

    def on_outputs(self, now_ns: int, worker: str, message: Outputs, buffers: Sequence[Buffer]) -> None:
        """Deliver a batch's outputs; its rows may belong to several in-flight predictions."""
        counts = [item.rows for item in message.items if item.status == OK]
        groups = split_batch(message.outputs, buffers, counts)
        for item in message.items:
            if item.status == OK:
                parts = next(groups)
                if (inflight := self._inflight.get(item.id)) is not None:
                    self._deliver_outputs(now_ns, inflight, worker, message, item.more, parts)
                elif item.more and worker != self.address:  # the stream ended before its first step did
                    self._post(Out(worker, EndStreams(message.share, message.model, (item.id,))))
            elif item.status in ANSWERED_WITHOUT_OUTPUTS:
                self._end_failed_stream(worker, message, item.id)
                self.on_outcome(now_ns, worker, Outcome(item.id, item.status, item.reason))

    def _end_failed_stream(self, worker: str, message: Outputs, submit_id: int) -> None:
        """Drop the state of a stream whose first step has failed, such as with an item that is too large."""
        inflight = self._inflight.get(submit_id)
        if inflight is not None and inflight.leader.step is not None and worker != self.address:
            self._post(Out(worker, EndStreams(message.share, message.model, (submit_id,))))

    def _deliver_outputs(
        self,
        now_ns: int,
        inflight: InflightPrediction,
        worker: str,
        message: Outputs,
        more: bool,
        parts: Sequence[tuple[Tensor, Buffer]],
    ) -> None:
        if not more or worker != self.address:  # the run of a pipeline has further items
            self._remove_inflight(inflight)
        outputs, buffers = tuple([part[0] for part in parts]), [part[1] for part in parts]
        exec_ns = message.end_ns - message.begin_ns
        content_hash = message.content_hash
        result = PredictionResult(OK, outputs, buffers, "", 0, exec_ns, message.batch_size, False, content_hash)
        if inflight.leader.step is not None:
            result = result._replace(more=more, worker="" if worker == self.address else worker, share=message.share)
        if inflight.cache_key and content_hash in ("", inflight.content_hash):
            self.cache.store(now_ns, inflight.cache_key, outputs, buffers, inflight.ttl_ns or self._ttl_ns)
        self._deliver(now_ns, inflight.leader, result)
        if inflight.followers:
            shared = result._replace(cached=True)
            for waiter in inflight.followers.values():
                self._deliver(now_ns, waiter, shared)

    def on_outcome(self, now_ns: int, sender: str, outcome: Outcome, buffers: Sequence[Buffer] = ()) -> None:
        """Deliver a failure. Followers with a later deadline are submitted again, unless the model has run."""
        if (inflight := self._inflight.get(outcome.id)) is None:
            return
        self._remove_inflight(inflight)
        result = PredictionResult(int(outcome.status), (), (), outcome.reason, outcome.retry_after_ns)
        final_ns = NEVER_NS if outcome.status in ANSWERED_WITHOUT_OUTPUTS else inflight.leader.deadline_ns
        self._deliver(now_ns, inflight.leader, result)
        retrying = []
        for waiter in inflight.followers.values():
            if waiter.deadline_ns > final_ns:
                retrying.append(waiter)
            else:
                self._deliver(now_ns, waiter, result)
        if retrying:
            retrying.sort(key=lambda waiter: (waiter.best_effort, -waiter.deadline_ns))
            again = msgspec.structs.replace(inflight, leader=retrying[0], followers={}, leader_heap=[])
            self._start_prediction(now_ns, again, retrying[1:])

    def remove_waiter(self, now_ns: int, waiter: Waiter) -> None:
        """Remove a waiter. If it leads, submit a follower's inputs instead; cancel the prediction if there is none."""
        inflight = self._inflight.get(waiter.submit_id)
        if inflight is None:
            return
        if waiter is not inflight.leader:
            inflight.followers.pop(waiter.sequence, None)
            return
        receiver = self.address if inflight.key in self._pipelines else self.controller
        self._post(Out(receiver, Cancel((inflight.submit_id,))))
        if inflight.promote_follower():
            self._last_id += 1
            self._renumber(inflight, self._last_id)
            self._submit(now_ns, inflight)
        else:
            self._remove_inflight(inflight)

    def _renumber(self, inflight: InflightPrediction, submit_id: int) -> None:
        """Change the id of the Submit: the inputs of another waiter are submitted."""
        del self._inflight[inflight.submit_id]
        if self._by_cache_key.get(inflight.cache_key) == inflight.submit_id:
            self._by_cache_key[inflight.cache_key] = submit_id
        self._inflight[submit_id] = inflight
        inflight.submit_id = submit_id
        for waiter in (inflight.leader, *inflight.followers.values()):
            waiter.submit_id = submit_id

    def _remove_inflight(self, inflight: InflightPrediction) -> None:
        del self._inflight[inflight.submit_id]
        if inflight.cache_key and self._by_cache_key.get(inflight.cache_key) == inflight.submit_id:
            del self._by_cache_key[inflight.cache_key]

    def waiters(self) -> Iterator[Waiter]:
        for inflight in self._inflight.values():
            yield inflight.leader
            yield from inflight.followers.values()

    def check(self) -> None:
        self.cache.check()
        assert set(self._by_cache_key.values()) <= set(self._inflight)
        for submit_id, inflight in self._inflight.items():
            assert inflight.submit_id == inflight.leader.submit_id == submit_id
            for sequence, follower in inflight.followers.items():
                assert (follower.submit_id, follower.sequence) == (submit_id, sequence)
            assert set(inflight.followers) <= {sequence for *_, sequence in inflight.leader_heap}
