"""ORLOJ: the requests with the highest score, in the batch size whose turn it is (algorithm 1, section 4).

The paper has one model and a device. With several models the batch that must start first goes first, as Clockwork has
it; on several devices each asks when it needs a batch. LOADs, admission of static models and best effort are the
house's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from horologe_controller.core.scheduling.batch_value import PROMISE
from horologe_controller.core.scheduling.planner import LookAhead
from horologe_controller.core.scheduling.scheduler import too_long
from horologe_controller.core.scheduling.strategies import Strategy
from horologe_controller.schedulers.orloj.score_queue import OrlojQueue
from horologe_controller.schedulers.orloj.scores import Scores

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.estimates import Estimate
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.requests.request import Request
    from horologe_controller.core.runtime_distributions import ModelDurations
    from horologe_controller.core.scheduling.queues import ModelQueue
    from horologe_controller.core.scheduling.scheduler import Refusal
    from horologe_controller.settings import ControllerSettings


class Scored(NamedTuple):
    """The requests of a queue by score, as of what was known of their model then."""

    known: ModelDurations
    scores: Scores
    pending: OrlojQueue[Request]

    def latest_ns(self, requests: Sequence[Request], size: int) -> int:
        """The last start at which all of them are viable for a batch of `size`."""
        takes_ns = self.scores.expected_ns[self.scores.sizes.index(size)]
        kind = self.known.kind
        return min(int(one.deadline_ns - takes_ns[kind(one.application, one.length)]) for one in requests)

    def insert(self, request: Request) -> None:
        kind = self.known.kind(request.application, request.length)
        self.pending.insert(request, kind, ((request.deadline_ns, 1.0),), request.rows)


class Orloj(LookAhead):
    """Beside each queue of a model whose times are known as distributions it keeps an `OrlojQueue`."""

    just_in_time = True

    def __init__(self, settings: ControllerSettings) -> None:
        super().__init__(settings)
        self._earliest = settings.orloj_order == "earliest"
        self._durations: Mapping[str, ModelDurations] = {}
        self._scores: dict[str, tuple[ModelDurations, Scores]] = {}
        self._scored: dict[tuple[str, int], Scored] = {}
        """By model and `shape_key`."""

    def add(self, now_ns: int, request: Request, cluster: Cluster) -> Refusal | None:
        self._durations = cluster.durations
        refusal = super().add(now_ns, request, cluster)
        if refusal is None and not request.best_effort:
            scored = self._scored.get((request.model, request.shape_key))
            if scored is not None:
                scored.insert(request)
        return refusal

    def _dequeued(self, now_ns: int, requests: list[Request], queue: ModelQueue, cluster: Cluster) -> None:
        key = queue.model, queue.key[0]
        if not queue.best_effort and (scored := self._scored.get(key)) is not None:
            for request in requests:
                scored.pending.remove(request)
            if not scored.pending:
                del self._scored[key]
        super()._dequeued(now_ns, requests, queue, cluster)

    def propose(self, now_ns: int, start_ns: int, share: Share, queue: ModelQueue) -> Strategy | None:
        """Algorithm 1, from line 10, for a batch that is to start at `start_ns`."""
        if not queue or (estimate := share.estimates.get(queue.model)) is None:
            return None
        known = self._durations.get(queue.model)
        if known is None:
            return self._static(now_ns, start_ns, estimate, queue)
        scored = self._scored_of(queue, known)
        found = scored.pending.choose(start_ns)
        if found is None:
            return None
        requests = sorted(found[1], key=queue.place)
        size = queue.spec.compiled_batch_size(sum(request.rows for request in requests))
        latest_ns = max(start_ns, scored.latest_ns(requests, found[0]))
        rank = 0, latest_ns, requests[0].id
        places = tuple(queue.place(request) for request in requests)
        return Strategy(rank, queue, size, places, promised_ns(known, requests, size), latest_ns, settled=False)

    def _scored_of(self, queue: ModelQueue, known: ModelDurations) -> Scored:
        """Built from its requests when first asked for and whenever what is known is something else."""
        key = queue.model, queue.key[0]
        scored = self._scored.get(key)
        if scored is None or scored.known is not known:
            found = self._scores.get(queue.model)
            if found is None or found[0] is not known or found[1].sizes != queue.spec.batch_sizes:
                found = self._scores[queue.model] = known, self._scores_by(known, queue.spec.batch_sizes)
            scored = Scored(known, found[1], OrlojQueue(found[1], earliest=self._earliest))
            self._scored[key] = scored
            for request in queue:
                scored.insert(request)
        return scored

    def _scores_by(self, known: ModelDurations, sizes: Sequence[int]) -> Scores:
        """Groups are the kinds."""
        solo = [part.solo for part in known.parts]
        return Scores(sizes, solo, solo[known.kind("", 0)], known.base_ns, self.settings.orloj_b_per_ms)

    def _static(self, now_ns: int, start_ns: int, estimate: Estimate, queue: ModelQueue) -> Strategy | None:
        """All batches of a size take the same l: the score is e^(-b(D - t - l)) / E[L], highest where D is earliest."""
        smallest_ns = estimate.predict(now_ns, queue.spec.batch_sizes[0])
        first = queue.surviving(start_ns + smallest_ns, queue.spec.max_batch)
        for most in range(first, len(queue)) if self._earliest else (len(queue),):
            for size in queue.sizes():
                expected_ns = estimate.predict(now_ns, size)
                place = queue.surviving(start_ns + expected_ns, size)
                if place <= most and (count := queue.filling(place, size)):
                    rank = 0, queue[place].deadline_ns - expected_ns, queue[place].id
                    return Strategy(rank, queue, size, range(place, place + count), expected_ns)
        return None

    def _refusal(self, now_ns: int, request: Request, exec_ns: int, cluster: Cluster) -> Refusal | None:
        """Scores, and not who came first, say who waits: what is ahead of a dynamic model's request is not known."""
        if request.model in cluster.durations:
            return too_long(now_ns, request, exec_ns)
        return super()._refusal(now_ns, request, exec_ns, cluster)

    def least_ns(self, now_ns: int, request: Request, cluster: Cluster) -> int:
        """Of a dynamic model what it takes alone on average: it has timed out when that is more than is left."""
        known = cluster.durations.get(request.model)
        if known is None:
            return super().least_ns(now_ns, request, cluster)
        return int(known.base_ns + known.row_mean_ns[known.kind(request.application, request.length)])

    def check(self) -> None:
        super().check()
        for queue in self.backlog:
            if not queue.best_effort and (scored := self._scored.get((queue.model, queue.key[0]))) is not None:
                scored.pending.check()
                assert len(scored.pending) == len(queue)


def promised_ns(known: ModelDurations, requests: Sequence[Request], size: int) -> int:
    """How long the device is taken to be busy: the maximum of the batch's own requests, by the product of their CDFs.

    A high quantile, as with the estimates of static models: by the mean, every other batch would be followed by one
    that was chosen, and sent, while it still ran.
    """
    kinds = [known.kind(one.application, one.length) for one in requests]
    below = np.exp(known.log_cdf[kinds].sum(axis=0))
    return int(known.base_ns + size * np.interp(PROMISE, below, known.grid_ns))
