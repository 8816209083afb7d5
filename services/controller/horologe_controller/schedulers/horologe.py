"""Default policy for static and dynamic models: run what gets most requests in time for the device's time.

Batches of a model whose execution times are known as distributions come from `batch_value`. Among the batch sizes of a
static model, and between models, the batch with the earliest *virtual start* goes first: the last start that meets its
first deadline, earlier the more requests it serves for its time. See docs/scheduling.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from horologe_controller.core.cluster.dynamic_pace import dynamic_slowness
from horologe_controller.core.cluster.estimates import profiled_ns
from horologe_controller.core.scheduling.batch_value import dynamic_queue
from horologe_controller.core.scheduling.device_price import DevicePrice
from horologe_controller.core.scheduling.queue_waits import QueueWaits
from horologe_controller.core.scheduling.ranking import Advance, Strategy, count_cheaper
from horologe_controller.core.scheduling.scheduling_policy import DECISION_LEAD_NS, PolicyParameters, SchedulingPolicy
from horologe_controller.core.traffic import Traffic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.estimates import Estimate
    from horologe_controller.core.cluster.lane import LookAhead
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.requests.request import Request
    from horologe_controller.core.runtime_distributions import RuntimeDistributions
    from horologe_controller.core.scheduling.queues import ModelQueue
    from horologe_controller.core.scheduling.ranking import Rank
    from horologe_controller.settings import ControllerSettings

IDLE, BUSY = 0.6, 1.2
"""Utilisation of a share (1: busy all the time; more: planned ahead). Below `IDLE`, never wait for a larger batch.
Between `IDLE` and `BUSY`, scale the wait linearly up to the latest start that meets the deadline. Lower values serve a
little more near saturation (experiments/results/orloj.md); at low load a wait only adds latency."""
LIKELY = 1.0
"""Part of the expected arrival time of the missing requests that must fit into the wait, else there is no wait. Lower
values serve a little more of open loops, and much less of closed ones, whose clients send nothing while they wait for
answers (experiments/results/schedulers.md)."""
SILENCE = 3
"""Stop waiting for a larger batch after this many times the expected arrival time of the missing requests without any.
Less gives up on batches that would fill (experiments/results/orloj.md)."""
MESSAGE_TRIPS = 3
"""Decision lead, in return latencies: a message to the worker, one back, and a turn of the controller."""
SAVING = 0.01
"""Least part of a share's time that larger batches of a model must save, else its batches do not wait. A model of 10 us
that is asked 100 times a second saves 0.0005, and each of its requests would wait for milliseconds."""
COLLISION = 4.0
"""Margin before the last start, in mean batch durations, divided by the number of shares with the model: these shares
may run other work at that moment. More shortens waits (experiments/results/orloj.md)."""

LEAST_BUDGET = 2
"""Budget, in times of a request alone, from which on fairness counts a request: those with less are mostly lost
whatever they count, and would cost the others their time."""


class HorologeParameters(PolicyParameters, frozen=True):
    """Parameters of `horologe`."""

    advance: Annotated[float, Meta(ge=0, le=1000)] = 2.0
    """How much the value of a batch counts beside its deadline: a batch goes earlier by this many mean batch durations
    if it serves e times as many requests for its time. While requests are lost, batches of cheap models go earlier
    still (docs/scheduling.md). 0: the last start that meets the deadline decides alone."""


class Horologe(SchedulingPolicy):
    """Batches of similar requests, ordered by expected goodput for the device's time."""

    just_in_time = True
    traffic: Traffic
    Parameters = HorologeParameters
    parameters: HorologeParameters

    def __init__(self, settings: ControllerSettings) -> None:
        super().__init__(settings)
        self.waits = self._waits = QueueWaits()
        self._cluster: Cluster | None = None
        self.traffic = Traffic()
        self._price = DevicePrice()
        self._now_ns = 0
        self._is_fair = settings.fairness == "fair"
        self._advance = Advance(self.parameters.advance, self.traffic.batch_ns)

    def best_batch(self, now_ns: int, start_ns: int, share: Share, queue: ModelQueue) -> Strategy | None:
        """Return the batch with the best value for its time, ranked by virtual start."""
        if not queue.rows or (estimate := share.estimates.get(queue.model)) is None:
            return None
        self._now_ns = now_ns
        cluster = self._cluster
        if cluster is not None and (distributions := cluster.distributions.get(queue.model)) is not None:
            slowed = distributions.slowed(dynamic_slowness(now_ns, cluster, share, queue.spec))
            strategy, until_ns = self._dynamic_strategy(start_ns, queue, slowed, distributions.mean_ns), 0
        else:
            most_rows = self._most_rows(now_ns, share, queue)
            strategy = self._static_strategy(now_ns, start_ns, queue, estimate, most_rows)
            until_ns = 0 if strategy is None else self._wait_until_ns(now_ns, share, strategy, estimate)
        if strategy is None:
            return None
        rows = 0
        if until_ns > start_ns:
            rows = estimate.growth[strategy.size][0]
        elif self._price.rate:
            busy, weight = self.traffic.utilisation(now_ns, share), self._weight(queue)
            until_ns = self._price.decline(start_ns, share, strategy, weight, busy, self.traffic.batch_ns)
        if until_ns <= start_ns:
            return strategy
        self._waits.hold_queue(queue, until_ns, rows)
        return None

    def best_effort_batch(self, now_ns: int, start_ns: int, share: Share, queue: ModelQueue) -> Strategy | None:
        """Return the oldest requests; none where the share has declined a batch of requests with deadlines."""
        if not self._price.has_declined(now_ns, share):
            return super().best_effort_batch(now_ns, start_ns, share, queue)
        if queue:
            self._waits.hold_queue(queue, now_ns + int(self.traffic.batch_ns))
        return None

    def _static_strategy(
        self, now_ns: int, start_ns: int, queue: ModelQueue, estimate: Estimate, most_rows: int
    ) -> Strategy | None:
        """Return the batch of at most `most_rows` rows with the earliest virtual start.

        The candidates are, for each size, the requests with the earliest deadlines that are in time in it if it takes
        its median time. (The share counts as busy for longer, a high quantile.) A larger size serves more requests for
        its time, and may have to leave the first ones behind, for which only a smaller one is fast enough. Sizes whose
        rows save no time are left out, unless requests have several rows. A batch for which larger, cheaper sizes have
        come too late goes after all others, if the queue can fill these sizes in time again: else all its batches are
        small, and the model would starve behind others.

        A worker starts the batch while the median leaves its last request in time. If the first one decided, a message
        that comes late would cost all of them their turn, and leave the share idle.
        """
        seed_ns, weight, advance = estimate.seed_ns, self._weight(queue), self._advance
        alone_ns = profiled_ns(seed_ns, queue.spec.batch_sizes[0])
        missed_row_ns: list[float] = []
        best = first = None
        for size in queue.batch_sizes():
            if (size > most_rows or size not in estimate.efficient_sizes) and queue.rows == len(queue):
                continue
            _, expected_ns, likely_ns = estimate.summary(now_ns, size)
            place = queue.first_in_time(start_ns + likely_ns, size)
            if count := queue.count_filling(place, size):
                earliest = queue[place]
                rate = weight * count / expected_ns
                virtual_ns = earliest.deadline_ns - expected_ns - advance.ns(rate, alone_ns)
                if best is None or virtual_ns < best.rank[1]:
                    shrunk = count_cheaper(missed_row_ns, seed_ns[size] / size) if missed_row_ns else 0
                    rank = shrunk, virtual_ns, earliest.id
                    latest_ns = queue[place + count - 1].deadline_ns - likely_ns
                    best = Strategy(rank, queue, size, range(place, place + count), expected_ns, latest_ns)
                if place and first is None:
                    least_ns = estimate.typical(now_ns, queue.spec.batch_sizes[0])
                    first = queue.first_in_time(start_ns + least_ns, queue.spec.max_batch)
                if place <= (first or 0):
                    break  # a smaller batch would have the same first request, and serve fewer for its time
            elif self._fills_in_time(queue, size, expected_ns):
                missed_row_ns.append(seed_ns[size] / size)
        return best

    def _most_rows(self, now_ns: int, share: Share, queue: ModelQueue) -> int:
        """Return the most rows of a batch: where devices are idle anyway, it leaves some to the other idle ones.

        All rows are answered sooner then, and clients of a closed loop send sooner.
        """
        cluster, load = self._cluster, self.traffic
        if queue.rows < 2 or share.exec.pending or cluster is None or self._has_lost(now_ns, queue):
            return queue.spec.max_batch
        if load.utilisation(now_ns, share) > IDLE:
            return queue.spec.max_batch
        rows = -(-queue.rows // max(1, cluster.residency.count_idle(queue.model)))
        return queue.spec.compiled_batch_size(min(rows, queue.spec.max_batch))

    def _has_lost(self, now_ns: int, queue: ModelQueue) -> bool:
        """Return whether a request was lost for lack of time within the budget of the queue's newest request."""
        lost_ns = self.traffic.lost_ns
        return lost_ns is not None and now_ns - lost_ns <= queue.newest_budget_ns()

    def _fills_in_time(self, queue: ModelQueue, size: int, expected_ns: int) -> bool:
        """Return whether new requests could fill a batch of the size, and it could reach an idle share, in time."""
        fills_ns = self.traffic.of_model(queue.model).fill_ns(size * len(queue) / queue.rows)
        dispatch_ns = 0 if self._cluster is None else self._cluster.latency.dispatch_ns
        return fills_ns + dispatch_ns + expected_ns <= queue.newest_budget_ns()

    def _dynamic_strategy(
        self, start_ns: int, queue: ModelQueue, distributions: RuntimeDistributions, alone_ns: float
    ) -> Strategy | None:
        """Return the batch of the highest value. It goes after all others if most of its requests would be late.

        `alone_ns`: mean time of a request alone on the fastest share.
        """
        choice = dynamic_queue(queue, distributions).best_choice(start_ns)
        if choice is None:
            return None
        earliest = queue[choice.places[0]]
        rate = self._weight(queue) * choice.in_time / choice.expected_ns
        in_time = choice.in_time if 2 * choice.in_time < len(choice.places) else None
        virtual_ns = earliest.deadline_ns - self._advance.ns(rate, alone_ns)
        rank = int(in_time is not None), virtual_ns, earliest.id
        latest_ns = max(start_ns, earliest.deadline_ns - choice.least_ns)
        return Strategy(rank, queue, choice.size, choice.places, choice.expected_ns, latest_ns, in_time)

    def rank_bound(self, queue: ModelQueue) -> Rank | None:
        """Return a lower bound of the rank of any batch that a dynamic queue allows."""
        if self._cluster is None or (distributions := self._cluster.distributions.get(queue.model)) is None:
            return None
        derived = dynamic_queue(queue, distributions)
        version, bound = derived.bound
        if version != self._advance.version:
            weight, alone_ns, advance = self._weight(queue), distributions.mean_ns, self._advance
            virtuals_ns = [due_ns - advance.ns(weight * rate, alone_ns) for due_ns, rate in derived.fastest]
            bound = 0, min(virtuals_ns), 0
            derived.bound = advance.version, bound
        return bound

    def _weight(self, queue: ModelQueue) -> float:
        """Return what a request of the queue counts."""
        spec, cluster = queue.spec, self._cluster
        weight = self.traffic.weight(spec) if self._is_fair else 1.0
        if weight > 1.0 and cluster is not None:
            alone_ns, _ = cluster.cached_exec_ns(self._now_ns, queue.model, spec.batch_sizes[0])
            if queue.newest_budget_ns() < LEAST_BUDGET * alone_ns:
                weight = 1.0
        return weight * spec.weight

    def _wait_until_ns(self, now_ns: int, share: Share, strategy: Strategy, estimate: Estimate) -> int:
        """Return until when the batch should wait for the next larger size; 0 if it should not wait.

        The wait grows with the utilisation of the share: where there is time to spare, small batches cost nothing.
        There is none unless a request has been lost lately (`_has_lost`): time saved would serve nobody. Clients that
        wait for answers would send less, and leave the share idle (experiments/results/schedulers.md).
        """
        queue, load = strategy.queue, self.traffic
        if not self._has_lost(now_ns, queue):
            return 0
        larger, saved_ns = estimate.growth.get(strategy.size, (0, 0.0))
        gap_ns = load.of_model(queue.model).next_ns()
        if not larger or larger > queue.spec.max_batch or saved_ns < SAVING * gap_ns:
            return 0
        first, arrivals_ns = queue[strategy.places[0]], int((larger - len(strategy.places)) * gap_ns)
        likely_ns = now_ns + LIKELY * arrivals_ns
        if first.deadline_ns < likely_ns:
            return 0
        busy = min(1.0, (load.utilisation(now_ns, share) - IDLE) / (BUSY - IDLE))
        if busy <= 0.0:
            return 0
        collision_ns = int(COLLISION * load.batch_ns) // max(1, share.residency.count_resident(queue.model))
        closes_ns = first.deadline_ns - estimate.predict(now_ns, larger) - collision_ns
        until_ns = first.arrival_ns + int(busy * (closes_ns - first.arrival_ns))
        if until_ns < likely_ns:
            return 0
        return min(until_ns, queue.newest_arrival_ns() + SILENCE * arrivals_ns)

    def decision_lead_ns(self, now_ns: int, cluster: Cluster) -> int:
        """Return three return latencies, at most `DECISION_LEAD_NS`, and what the network takes there and back."""
        latency = cluster.latency
        trips_ns = MESSAGE_TRIPS * (latency.returns.high_quantile(now_ns) or DECISION_LEAD_NS)
        return max(min(DECISION_LEAD_NS, trips_ns), latency.round_trip_ns)

    def go_ahead_until_ns(self, ahead: LookAhead, strategy: Strategy) -> int:
        """Return less for a batch that is likely to grow while Results wait in busy processes.

        A worker that waits for its processor would get more and smaller batches (experiments/results/schedulers.md).
        """
        until_ns, waits_ns = super().go_ahead_until_ns(ahead, strategy), ahead.return_until_ns - ahead.network_until_ns
        grows = until_ns == ahead.return_until_ns and self.traffic.of_model(strategy.queue.model).gap_ns < waits_ns
        return ahead.network_until_ns if grows else until_ns

    def shortest_exec_ns(self, now_ns: int, request: Request, cluster: Cluster) -> int:
        """Return a low quantile of the request's kind if its model is dynamic, else the median if it is in time."""
        distributions = cluster.distributions.get(request.model)
        if distributions is None:
            return cluster.request_exec_ns(now_ns, request, typical=True)
        return distributions.least_exec_ns(request)

    def is_dynamic(self, model: str, cluster: Cluster) -> bool:
        """Return whether distributions of the model's execution times are known."""
        return model in cluster.distributions

    def on_requests_arrived(self, requests: Sequence[Request], cluster: Cluster) -> None:
        """Record the arrivals of new requests."""
        self._cluster = cluster
        self.traffic.record_arrivals(requests)

    def on_request_late(self, now_ns: int, request: Request, cluster: Cluster) -> None:
        """Record the loss, and raise the price of device time."""
        self.traffic.record_late(now_ns)
        self._price.record_late(now_ns, request, cluster)

    def on_batch_chosen(self, start_ns: int, share: Share, strategy: Strategy) -> bool:
        """Record the batch. Return whether the advance, and so all ranks, have changed."""
        if self._price.declined:
            self._price.end_idle_time(share)
        self.traffic.record_batch(self._now_ns, start_ns, share, strategy)
        return self._advance.update(self.traffic.batch_ns, self.traffic.served)

    def on_share_lost(self, share: Share) -> None:
        """Discard the load of the share."""
        self._price.end_idle_time(share)
        self.traffic.discard_share(share)
