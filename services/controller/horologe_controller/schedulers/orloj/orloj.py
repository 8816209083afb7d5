"""ORLOJ: the requests with the highest scores, in the batch size whose turn it is (algorithm 1, section 4).

The paper has one model and one device. With several models, the batch that must start first goes first, as in
Clockwork. With several devices, each asks when it needs a batch. LOADs, admission of static models and best effort are
the planner's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from horologe_common.clock import NEVER_NS
from horologe_controller.core.scheduling.scheduling_policy import PolicyParameters, SchedulingPolicy
from horologe_controller.core.scheduling.strategy import Rank, Strategy
from horologe_controller.schedulers.orloj.score_queue import ScoreQueue
from horologe_controller.schedulers.orloj.scores import Scores

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.estimates import Estimate
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.requests.request import Request
    from horologe_controller.core.runtime_distributions import RuntimeDistributions
    from horologe_controller.core.scheduling.queues import ModelQueue
    from horologe_controller.settings import ControllerSettings


class ScoredRequests(NamedTuple):
    """Requests of a queue by score, and the distributions that the scores were computed from."""

    distributions: RuntimeDistributions
    scores: Scores
    pending: ScoreQueue[Request]

    def latest_start_ns(self, requests: Sequence[Request], size: int) -> int:
        """Return the last start at which all of the requests are viable for a batch of `size`."""
        expected_ns = self.scores.expected_ns[self.scores.sizes.index(size)]
        kind_of = self.distributions.kind_of
        return min(
            int(request.deadline_ns - expected_ns[kind_of(request.application, request.length)]) for request in requests
        )

    def insert(self, request: Request) -> None:
        kind = self.distributions.kind_of(request.application, request.length)
        self.pending.insert(request, kind, request.deadline_ns, request.rows)


class OrlojParameters(PolicyParameters, frozen=True):
    """Parameters of `orloj`."""

    order: Literal["earliest", "latest"] = "earliest"
    """Batch size that is chosen if there are enough requests for several: the size with the earliest deadline (ORLOJ
    section 3.2) or with the latest (line 16 of its algorithm 1). Of equal deadlines, the largest size."""
    b_per_ms: float = 1e-4
    """Rate b of the delay that is anticipated for a request that is not chosen now (ORLOJ section 4.1)."""


class Orloj(SchedulingPolicy):
    """Keeps a `ScoreQueue` beside each queue of a model whose execution times are known as distributions."""

    just_in_time = True
    uses_distributions = True
    Parameters = OrlojParameters
    parameters: OrlojParameters

    def __init__(self, settings: ControllerSettings, cluster: Cluster) -> None:
        super().__init__(settings, cluster)
        self._earliest = self.parameters.order == "earliest"
        self._scores: dict[str, tuple[RuntimeDistributions, Scores]] = {}
        self._scored: dict[tuple[str, int], ScoredRequests] = {}
        """By model and `shape_key`."""

    def best_batch(self, now_ns: int, start_ns: int, share: Share, queue: ModelQueue) -> Strategy | None:
        """Run algorithm 1 from line 10 for a batch that is to start at `start_ns`."""
        if not queue or (estimate := share.estimates.get(queue.model)) is None:
            return None
        distributions = self.cluster.distributions.get(queue.model)
        if distributions is None:
            return self._static_strategy(now_ns, start_ns, estimate, queue)
        scored = self._scored_requests(queue, distributions)
        chosen = scored.pending.choose_batch(start_ns)
        if chosen is None:
            return None
        requests = sorted(chosen[1], key=queue.place_of)
        size = queue.spec.compiled_batch_size(sum(request.rows for request in requests))
        latest_ns = max(start_ns, scored.latest_start_ns(requests, chosen[0]))
        rank = Rank(0, latest_ns, requests[0].id)
        places = tuple(queue.place_of(request) for request in requests)
        expected_ns = batch_quantile_ns(distributions, requests, size)
        return Strategy(rank, queue, size, places, expected_ns, latest_ns)

    def rank_bound(self, queue: ModelQueue) -> Rank | None:
        """Return the lowest rank for dynamic models: scores change with time, so their queues are always examined."""
        return Rank(0, -NEVER_NS, 0) if queue.model in self.cluster.distributions else None

    def _scored_requests(self, queue: ModelQueue, distributions: RuntimeDistributions) -> ScoredRequests:
        """Return the scores of a queue's requests. They are built at first use and after new distributions."""
        key = queue.model, queue.key[0]
        scored = self._scored.get(key)
        if scored is None or scored.distributions is not distributions:
            cached = self._scores.get(queue.model)
            if cached is None or cached[0] is not distributions or cached[1].sizes != queue.spec.batch_sizes:
                scores = self._create_scores(distributions, queue.spec.batch_sizes)
                cached = self._scores[queue.model] = distributions, scores
            scored = ScoredRequests(distributions, cached[1], ScoreQueue(cached[1], earliest=self._earliest))
            self._scored[key] = scored
            for request in queue:
                scored.insert(request)
        return scored

    def _create_scores(self, distributions: RuntimeDistributions, sizes: Sequence[int]) -> Scores:
        """Create scores whose groups are the kinds."""
        solo = [part.solo for part in distributions.parts]
        any_request = solo[distributions.kind_of("", 0)]
        return Scores(sizes, solo, any_request, distributions.base_ns, self.parameters.b_per_ms)

    def _static_strategy(self, now_ns: int, start_ns: int, estimate: Estimate, queue: ModelQueue) -> Strategy | None:
        """Return the batch of a static model. The highest scores are the earliest deadlines.

        All batches of a size take the same l, so the score is e^(-b(D - t - l)) / E[L].
        """
        smallest_ns = estimate.predict(now_ns, queue.spec.batch_sizes[0])
        first = queue.first_in_time(start_ns + smallest_ns, queue.spec.max_batch)
        for last_place in range(first, len(queue)) if self._earliest else (len(queue),):
            for size in queue.batch_sizes():
                expected_ns = estimate.predict(now_ns, size)
                place = queue.first_in_time(start_ns + expected_ns, size)
                if place <= last_place and (count := queue.count_filling(place, size)):
                    rank = Rank(0, queue[place].deadline_ns - expected_ns, queue[place].id)
                    return Strategy(rank, queue, size, range(place, place + count), expected_ns)
        return None

    def shortest_exec_ns(self, now_ns: int, request: Request) -> int:
        """Return the mean solo time if the model is dynamic: a request has timed out when less is left."""
        distributions = self.cluster.distributions.get(request.model)
        if distributions is None:
            return self.cluster.request_exec_ns(now_ns, request)
        kind = distributions.kind_of(request.application, request.length)
        return int(distributions.base_ns + distributions.row_mean_ns[kind])

    def on_requests_queued(self, requests: Sequence[Request]) -> None:
        """Add the requests to the scores of their queue."""
        first = requests[0]
        if not first.best_effort and (scored := self._scored.get((first.model, first.shape_key))) is not None:
            for request in requests:
                scored.insert(request)

    def on_requests_removed(self, requests: list[Request], queue: ModelQueue) -> None:
        """Remove the requests from the scores of their queue."""
        key = queue.model, queue.key[0]
        if not queue.best_effort and (scored := self._scored.get(key)) is not None:
            for request in requests:
                scored.pending.remove(request)
            if not scored.pending:
                del self._scored[key]

    def check(self, queues: Iterable[ModelQueue]) -> None:
        """Assert that every queue with scores has a score for each of its requests."""
        for queue in queues:
            if not queue.best_effort and (scored := self._scored.get((queue.model, queue.key[0]))) is not None:
                scored.pending.check()
                assert len(scored.pending) == len(queue)


def batch_quantile_ns(distributions: RuntimeDistributions, requests: Sequence[Request], size: int) -> int:
    """Return a high quantile of the batch's duration: the maximum of its requests, by the product of their CDFs.

    With the mean instead, every other batch would be followed by one that was sent while it still ran.
    """
    row_ns = distributions.longest_row(distributions.kinds_of_rows(requests)).high_ns
    return int(distributions.base_ns + distributions.scale(size) * row_ns)
