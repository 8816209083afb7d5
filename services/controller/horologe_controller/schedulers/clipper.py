"""Clipper (section 4.3): a queue for each model, batches up to a limit that is found by trying, perhaps a short wait.

The limit is kept for each model and share (section 4.4.1). It is set by additive increase and multiplicative decrease
or by quantile regression. Nothing is predicted for a single request: the oldest goes next, of whatever model, and what
has been given to a share is run however late it is. The paper does not say what becomes of requests whose deadline
passes in the queue; its implementation (ucbrise/clipper, `task_executor.hpp`) orders a queue by deadline and drops them
when the next batch is taken, and so does this.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from horologe_common.clock import s
from horologe_controller.core.scheduling.scheduler import Refusal
from horologe_controller.core.scheduling.strategies import Strategy
from horologe_controller.core.scheduling.waiting import WHEN_DRY, Waiting
from horologe_controller.schedulers.quantile_regression import quantile_line

if TYPE_CHECKING:
    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.lane import Action
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.requests.request import Request
    from horologe_controller.core.scheduling.queues import ModelQueue
    from horologe_controller.core.scheduling.scheduler import Batch
    from horologe_controller.settings import ControllerSettings

WINDOW_NS = s(3600)
"""A batch may begin whenever its turn comes."""
QUANTILE = 0.99
RECENT = 100
"""Measurements that the regression is over; the paper says neither how many nor how often it is done."""
REFIT = 10
"""Measurements after which it is done again, sooner when one is beyond the objective that should have been within."""


class BatchLimit:
    """How many rows a batch of one model on one share may have."""

    def __init__(self) -> None:
        self.rows = 1.0
        self._points: deque[tuple[int, int]] = deque(maxlen=RECENT)
        self._line: tuple[float, float] | None = None
        self._until_refit = 0

    def full(self, sizes: tuple[int, ...]) -> int:
        """The largest compiled size within the limit, at least the smallest."""
        return next((size for size in reversed(sizes) if size <= self.rows), sizes[0])

    def step(
        self, size: int, took_ns: int, objective_ns: int, sizes: tuple[int, ...], settings: ControllerSettings
    ) -> None:
        """Additive increase after a full batch within the objective, multiplicative decrease after any beyond it.

        One that is not full says nothing about a larger limit.
        """
        if took_ns > objective_ns:
            self.rows = max(1.0, self.rows * settings.clipper_backoff)
        elif size >= self.full(sizes):
            self.rows = min(self.rows + settings.clipper_increase, float(sizes[-1]))

    def fit(
        self, size: int, took_ns: int, objective_ns: int, sizes: tuple[int, ...], settings: ControllerSettings
    ) -> None:
        """The largest size whose 99th percentile, by regression, is within the objective. Until two sizes have been
        measured, it goes by `step`. Beyond the largest of them it grows by steps, too: where all are nearly alike, the
        slope is that of the noise, and may say of batches twice as large that they take no longer."""
        self._points.append((size, took_ns))
        surprise = self._line is not None and self._line[0] + self._line[1] * size <= objective_ns < took_ns
        self._until_refit = 0 if surprise else self._until_refit - 1
        if self._until_refit <= 0 or self._line is None:
            several = len({size for size, _ in self._points}) > 1
            self._line = quantile_line(self._points, QUANTILE) if several else None
            self._until_refit = REFIT
        if self._line is None:
            self.step(size, took_ns, objective_ns, sizes, settings)
            return
        intercept, slope = self._line
        most = max(size for size, _ in self._points) + settings.clipper_increase
        within = (size for size in reversed(sizes) if intercept + slope * size <= objective_ns)
        self.rows = min(float(next(within, sizes[0])), most)


class Clipper(Waiting):
    """The oldest request goes next, with as many of its model behind it as the limit allows."""

    def __init__(self, settings: ControllerSettings) -> None:
        super().__init__(settings)
        self._limits: dict[Share, dict[str, BatchLimit]] = {}

    def limit(self, share: Share, model: str) -> BatchLimit:
        return self._limits.setdefault(share, {}).setdefault(model, BatchLimit())

    def lost(self, share: Share) -> None:
        self._limits.pop(share, None)

    def propose(self, now_ns: int, start_ns: int, share: Share, queue: ModelQueue) -> Strategy | None:
        """The largest size within the limit; less than the limit only once the first has waited long enough."""
        if not queue or (estimate := share.estimates.get(queue.model)) is None:
            return None
        first, full = queue[0], self.limit(share, queue.model).full(queue.spec.batch_sizes)
        most = max(full, queue.spec.compiled_batch_size(first.rows))
        for size in queue.sizes():
            if size <= most and (count := queue.filling(0, size)):
                ready_ns = first.arrival_ns + self.settings.clipper_delay_ns
                if size < full and start_ns < ready_ns:
                    self.wait(queue, ready_ns)
                    return None
                rank = WHEN_DRY, first.arrival_ns, first.id
                return Strategy(rank, queue, size, range(count), estimate.predict(now_ns, size))
        return None

    def observe(self, now_ns: int, action: Action, took_ns: int) -> None:
        """Adapt the limit to how a batch took, against what its first request was given."""
        first = action.requests[0] if action.kind == "infer" else None
        if first is not None and not first.best_effort:
            limit, objective_ns = self.limit(action.share, action.model), first.deadline_ns - first.arrival_ns
            adapt = limit.fit if self.settings.clipper_quantile_regression else limit.step
            adapt(action.batch_size, took_ns, objective_ns, first.spec.batch_sizes, self.settings)
        super().observe(now_ns, action, took_ns)

    def _refusal(self, now_ns: int, request: Request, exec_ns: int, cluster: Cluster) -> Refusal | None:
        """Every request is queued."""
        return None

    def _refusals(self, now_ns: int, cluster: Cluster) -> list[Refusal]:
        """Those whose deadline has passed."""
        refused = []
        for request in self.backlog.overdue(now_ns):
            if now_ns < request.deadline_ns:
                self.backlog.again(request, request.deadline_ns - 1)
                continue
            self.remove(now_ns, request, cluster)
            late_ns = now_ns + self.least_ns(now_ns, request, cluster) - request.deadline_ns
            refused.append(Refusal(request, "its deadline passed in the queue", late_ns))
        return refused

    def _batch(self, now_ns: int, free_ns: int, share: Share, cluster: Cluster, strategy: Strategy) -> Batch:
        batch = super()._batch(now_ns, free_ns, share, cluster, strategy)
        batch.latest_ns = free_ns + WINDOW_NS
        return batch
