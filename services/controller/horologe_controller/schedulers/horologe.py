"""Default policy: run what gets most requests in time for the device's time (docs/scheduling.md).

The batch with the earliest *virtual start* goes first: the last start that meets its first deadline, earlier the more
requests it serves for its time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from horologe_controller.core.cluster.cluster import Cluster
from horologe_controller.core.cluster.dynamic_pace import dynamic_slowness
from horologe_controller.core.scheduling.batch_value import queued_requests
from horologe_controller.core.scheduling.scheduling_policy import SchedulingPolicy
from horologe_controller.core.scheduling.strategy import Rank, Strategy
from horologe_controller.core.traffic import LEAST_BUDGET, SERVED_MEMORY, Traffic
from horologe_controller.schedulers.horologe_parameters import HorologeParameters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_controller.core.cluster.estimates import Estimate
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.requests.request import Request
    from horologe_controller.core.runtime_distributions import RuntimeDistributions
    from horologe_controller.core.scheduling.queues import ModelQueue
    from horologe_controller.settings import ControllerSettings


class Advance:
    """Time by which a batch goes earlier for what it serves, as a number of mean batches (parameter `advance`).

    While requests are lost, cheap models go earlier: the advance for their cost is divided by the square of the part of
    all requests that is served. Between batches of models that cost as much alone, losses change nothing.
    """

    def __init__(self, batches: float, batch_ns: float) -> None:
        self._batches = batches
        self._batch_ns = batch_ns
        self._losses = 0.0
        """1 over the square of the part of the recent requests that is served, less 1, when last updated."""
        self.version = 1
        """Changes with what `ns` returns."""

    def ns(self, rate: float, alone_ns: float) -> int:
        """Return the time for a batch that serves `rate` requests per ns. One request of the model takes `alone_ns`."""
        cost = self._losses * math.log(max(1.0, alone_ns)) if self._losses else 0.0
        return int(self._batches * self._batch_ns * (math.log(rate) - cost))

    def update(self, batch_ns: float, served: float) -> bool:
        """Adopt the mean duration of batches and the part of all requests that is served. Return whether `ns` changes.

        `ns` follows a change by a factor of two: all ranks change with it.
        """
        losses = max(served, 1 - SERVED_MEMORY) ** -2 - 1.0
        if is_off := not self._batch_ns / 2 < batch_ns < self._batch_ns * 2:
            self._batch_ns = batch_ns
        if losses != self._losses and not self._losses / 2 < losses < self._losses * 2:
            self._losses, is_off = losses, True
        self.version += is_off
        return is_off


class Horologe(SchedulingPolicy):
    """Batches of similar requests, ordered by expected goodput for the device's time."""

    just_in_time = True
    uses_distributions = True
    traffic: Traffic
    Parameters = HorologeParameters
    parameters: HorologeParameters

    def __init__(self, settings: ControllerSettings, cluster: Cluster) -> None:
        super().__init__(settings, cluster)
        self.traffic = Traffic()
        self._price = self.traffic.price
        self._now_ns = 0
        self._is_fair = settings.fairness == "fair"
        self._advance = Advance(self.parameters.advance, self.traffic.batch_ns)

    def best_batch(self, now_ns: int, start_ns: int, share: Share, queue: ModelQueue) -> Strategy | None:
        """Return the batch with the best value for its time, ranked by virtual start."""
        if not queue.rows or (estimate := share.estimates.get(queue.model)) is None:
            return None
        self._now_ns = now_ns
        cluster = self.cluster
        if (distributions := self.cluster.distributions.get(queue.model)) is not None:
            slowed = distributions.slowed(dynamic_slowness(now_ns, cluster, share, queue.spec))
            strategy = self._dynamic_strategy(start_ns, queue, slowed, distributions.mean_ns)
        else:
            strategy = self._static_strategy(now_ns, start_ns, share, queue, estimate)
        if strategy is None or not self._price.rate:
            return strategy
        busy, weight = self.traffic.utilisation(now_ns, share), self._weight(queue)
        until_ns = self._price.decline(start_ns, share, strategy, weight, busy, self.traffic.batch_ns)
        if until_ns <= start_ns:
            return strategy
        self.waits.hold_queue(queue, until_ns)
        return None

    def _largest_size(self, now_ns: int, share: Share, queue: ModelQueue) -> int:
        """Return the largest batch size with which every idle share with the model runs a part of the queue.

        Answers then come earlier. It takes more device time than one batch, which is worth nothing as long as less than
        one recent request was lost. Clients of a closed loop whose requests were in one batch would stay together.
        A queue with requests of several rows is not divided: a part could be too small for one of them.
        """
        rows, spec = queue.rows, queue.spec
        if rows == 1 or rows > len(queue) or share.exec.pending:
            return spec.max_batch
        if self.traffic.lost.at(now_ns) >= 1.0:
            return spec.max_batch
        shares = self.cluster.residency.shares_of[queue.model].items()
        idle = sum([resident and self._is_idle(now_ns, other) for other, resident in shares])
        return spec.max_batch if idle <= 1 else spec.compiled_batch_size(min(-(-rows // idle), spec.max_batch))

    def _is_idle(self, now_ns: int, share: Share) -> bool:
        """Return whether nothing runs on the share, and it gets nothing in this turn."""
        is_free = not share.exec.pending and self.traffic.last_start_ns(share) < now_ns
        return is_free and self.cluster.workers[share.worker].reachable

    def _static_strategy(
        self, now_ns: int, start_ns: int, share: Share, queue: ModelQueue, estimate: Estimate
    ) -> Strategy | None:
        """Return the batch with the earliest virtual start.

        The candidates are, for each size, the requests with the earliest deadlines that are in time in it by the
        median. (The share counts as busy for longer, a high quantile.) A larger size serves more requests for its time,
        and may have to leave the first ones behind. A batch for which larger, cheaper sizes have come too late goes
        after all others, if the queue can fill these sizes in time again: else all its batches are small, and the model
        would starve. While the queue loses requests, others wait for each place: its batch is the largest one that is
        in time even if it takes long.

        A worker starts the batch while the median leaves its last request in time. If the first one decided, a late
        message would cost all of them their turn, and leave the share idle.
        """
        weight, advance, alone_ns = self._weight(queue), self._advance, estimate.alone_ns
        missed = 0
        best = first = None
        largest_size = self._largest_size(now_ns, share, queue)
        losing = queue.is_losing(now_ns)
        for size in queue.batch_sizes():
            if size > largest_size or (size not in estimate.efficient_sizes and queue.rows == len(queue)):
                continue
            _, expected_ns, likely_ns = estimate.summary(now_ns, size)
            if losing:
                likely_ns = expected_ns
            place = queue.first_in_time(start_ns + likely_ns, size)
            if not (count := queue.count_filling(place, size)):
                if self._fills_in_time(queue, size, expected_ns):
                    missed += size in estimate.efficient_sizes
                continue
            earliest = queue[place]
            virtual_ns = earliest.deadline_ns - expected_ns - advance.ns(weight * count / expected_ns, alone_ns)
            if best is None or virtual_ns < best.rank.order_ns:
                rank = Rank(missed, virtual_ns, earliest.id)
                latest_ns = queue[place + count - 1].deadline_ns - likely_ns
                best = Strategy(rank, queue, size, range(place, place + count), expected_ns, latest_ns)
            if losing:
                break
            if place and first is None:
                least_ns = estimate.typical(now_ns, queue.spec.batch_sizes[0])
                first = queue.first_in_time(start_ns + least_ns, queue.spec.max_batch)
            if place <= (first or 0):
                break  # a smaller batch would have the same first request, and serve fewer for its time
        return best

    def _fills_in_time(self, queue: ModelQueue, size: int, expected_ns: int) -> bool:
        """Return whether new requests could fill a batch of the size, and it could reach an idle share, in time."""
        fills_ns = self.traffic.of_model(queue.model).gap_ns * size * len(queue) / queue.rows
        return fills_ns + self.cluster.latency.dispatch_ns + expected_ns <= queue.newest_budget_ns()

    def _dynamic_strategy(
        self, start_ns: int, queue: ModelQueue, distributions: RuntimeDistributions, alone_ns: float
    ) -> Strategy | None:
        """Return the batch of the highest value. It goes after all others if most of its requests would be late.

        `alone_ns`: mean time of a request alone on the fastest share.
        """
        choice = queued_requests(queue, distributions).best_choice(start_ns)
        if choice is None:
            return None
        earliest = queue[choice.places[0]]
        rate = self._weight(queue) * choice.in_time / choice.expected_ns
        in_time = choice.in_time if 2 * choice.in_time < len(choice.places) else None
        virtual_ns = earliest.deadline_ns - self._advance.ns(rate, alone_ns)
        rank = Rank(int(in_time is not None), virtual_ns, earliest.id)
        latest_ns = max(start_ns, earliest.deadline_ns - choice.least_ns)
        return Strategy(rank, queue, choice.size, choice.places, choice.expected_ns, latest_ns, in_time)

    def rank_bound(self, queue: ModelQueue) -> Rank | None:
        """Return a lower bound of the rank of any batch that a dynamic queue allows."""
        if (distributions := self.cluster.distributions.get(queue.model)) is None:
            return None
        queued = queued_requests(queue, distributions)
        version, bound = queued.bound
        if version != self._advance.version:
            weight, alone_ns, advance = self._weight(queue), distributions.mean_ns, self._advance
            virtuals_ns = [due_ns - advance.ns(weight * rate, alone_ns) for due_ns, rate in queued.fastest_batches()]
            bound = Rank(0, min(virtuals_ns), 0)
            queued.bound = advance.version, bound
        return bound

    def _weight(self, queue: ModelQueue) -> float:
        """Return what a request of the queue counts."""
        spec = queue.spec
        weight = self.traffic.weight(spec) if self._is_fair else 1.0
        if weight > 1.0:
            alone_ns, _ = self.cluster.cached_exec_ns(self._now_ns, queue.model, spec.batch_sizes[0])
            if queue.newest_budget_ns() < LEAST_BUDGET * alone_ns:
                weight = 1.0
        return weight * spec.weight

    def shortest_exec_ns(self, now_ns: int, request: Request) -> int:
        """Return a low quantile of the request's kind if its model is dynamic."""
        distributions = self.cluster.distributions.get(request.model)
        if distributions is None:
            return self.cluster.request_exec_ns(now_ns, request)
        return distributions.least_exec_ns(request)

    def on_requests_arrived(self, requests: Sequence[Request]) -> None:
        """Record the arrivals of new requests."""
        self.traffic.record_arrivals(requests)

    def on_request_late(self, now_ns: int, request: Request) -> None:
        """Record the loss, and raise the price of device time."""
        self.traffic.record_loss(now_ns, request.model)
        self._price.record_late(now_ns, request, self.cluster)

    def on_refused_again(self, now_ns: int, request: Request, count: int) -> None:
        """Record the arrivals and the losses, and raise the price of device time."""
        self.traffic.record_refused_again(now_ns, request, count)
        self._price.record_late(now_ns, request, self.cluster, count)

    def on_batch_chosen(self, start_ns: int, share: Share, strategy: Strategy) -> bool:
        """Record the batch. Return whether the advance, and so all ranks, have changed."""
        if self._price.declined:
            self._price.end_idle_time(share)
        self.traffic.record_batch(start_ns, share, strategy)
        return self._advance.update(self.traffic.batch_ns, self.traffic.served)

    def on_share_lost(self, share: Share) -> None:
        """Discard the load of the share."""
        self._price.end_idle_time(share)
        self.traffic.discard_share(share)
