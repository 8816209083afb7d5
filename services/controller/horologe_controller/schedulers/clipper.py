"""Clipper (section 4.3): a queue for each model, batches up to an adaptive limit, perhaps a wait for more requests.

Each model has a limit on each share (section 4.4.1), set by additive increase and multiplicative decrease or by
quantile regression. Nothing is predicted for a single request: the oldest request of any model goes next, and a batch
that was given to a share runs however late it is. Requests whose deadline passes in the queue are dropped when the next
batch is taken, as in Clipper's implementation (ucbrise/clipper, `task_executor.hpp`).
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from horologe_common.core.instruments import quantile
from horologe_controller.core.scheduling.batch_window import head_window
from horologe_controller.core.scheduling.scheduling_policy import PolicyParameters, SchedulingPolicy
from horologe_controller.core.scheduling.strategy import Rank, Strategy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.lane import Action
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.scheduling.queues import ModelQueue
    from horologe_controller.settings import ControllerSettings

QUANTILE = 0.99
RECENT = 100
"""Measurements that the regression uses. The paper states neither their number nor how often the line is fitted."""
REFIT = 10
"""Measurements between fits. A batch that exceeds the objective against the line's prediction causes a fit at once."""


class ClipperParameters(PolicyParameters, frozen=True):
    """Parameters of `clipper`."""

    increase: Annotated[float, Meta(ge=0)] = 1.0
    """Rows by which the batch limit of a model on a share grows with each full batch within the SLO."""
    backoff: Annotated[float, Meta(gt=0, le=1)] = 0.9
    """Factor of the batch limit after a batch that took longer than the SLO."""
    quantile_regression: bool = False
    """Set the batch limit by quantile regression instead: the largest batch of which 99% are within the SLO, by a line
    through recent batches."""
    delay_ns: Annotated[int, Meta(ge=0)] = 0
    """Time that the first request of a batch smaller than the limit waits for more requests."""


class BatchLimit:
    """Limit of rows in a batch of one model on one share."""

    def __init__(self) -> None:
        self.rows = 1.0
        self._points: deque[tuple[int, int]] = deque(maxlen=RECENT)
        """(batch size, duration)."""
        self._line: tuple[float, float] | None = None
        self._until_refit = 0

    def largest_size(self, sizes: tuple[int, ...]) -> int:
        """Return the largest compiled size within the limit, at least the smallest."""
        return next((size for size in reversed(sizes) if size <= self.rows), sizes[0])

    def adapt_stepwise(
        self, size: int, took_ns: int, objective_ns: int, sizes: tuple[int, ...], parameters: ClipperParameters
    ) -> None:
        """Increase the limit after a full batch within the objective, decrease it after any batch beyond it.

        A batch that is not full says nothing about a larger limit.
        """
        if took_ns > objective_ns:
            self.rows = max(1.0, self.rows * parameters.backoff)
        elif size >= self.largest_size(sizes):
            self.rows = min(self.rows + parameters.increase, float(sizes[-1]))

    def adapt_by_regression(
        self, size: int, took_ns: int, objective_ns: int, sizes: tuple[int, ...], parameters: ClipperParameters
    ) -> None:
        """Set the limit to the largest size whose 99th percentile, by regression, is within the objective.

        Until two sizes have been measured, the limit adapts stepwise. Beyond the largest measured size it grows by
        steps as well: if the sizes are nearly alike, the slope is that of the noise, and may say that batches twice as
        large take no longer.
        """
        self._points.append((size, took_ns))
        surprise = self._line is not None and self._line[0] + self._line[1] * size <= objective_ns < took_ns
        self._until_refit = 0 if surprise else self._until_refit - 1
        if self._until_refit <= 0 or self._line is None:
            several = len({size for size, _ in self._points}) > 1
            self._line = quantile_line(self._points, QUANTILE) if several else None
            self._until_refit = REFIT
        if self._line is None:
            self.adapt_stepwise(size, took_ns, objective_ns, sizes, parameters)
            return
        intercept, slope = self._line
        most = max(size for size, _ in self._points) + parameters.increase
        within = (size for size in reversed(sizes) if intercept + slope * size <= objective_ns)
        self.rows = min(float(next(within, sizes[0])), most)


class Clipper(SchedulingPolicy):
    """The oldest request goes next, with as many of its model behind it as the limit allows."""

    deadline_rule = "expire"
    Parameters = ClipperParameters
    parameters: ClipperParameters

    def __init__(self, settings: ControllerSettings, cluster: Cluster) -> None:
        super().__init__(settings, cluster)
        self._limits: dict[Share, dict[str, BatchLimit]] = {}

    def limit(self, share: Share, model: str) -> BatchLimit:
        return self._limits.setdefault(share, {}).setdefault(model, BatchLimit())

    def best_batch(self, now_ns: int, start_ns: int, share: Share, queue: ModelQueue) -> Strategy | None:
        """Return the largest batch within the limit. A smaller one waits until its first request has waited enough."""
        if not queue or (estimate := share.estimates.get(queue.model)) is None:
            return None
        first, full = queue[0], self.limit(share, queue.model).largest_size(queue.spec.batch_sizes)
        if (window := head_window(queue, full)) is None:
            return None
        waits_until_ns = first.arrival_ns + self.parameters.delay_ns
        if window.size < full and start_ns < waits_until_ns:
            self.waits.hold_queue(queue, waits_until_ns)
            return None
        rank, expected_ns = Rank(1, first.arrival_ns, first.id), estimate.predict(now_ns, window.size)
        return Strategy(rank, queue, window.size, window.places, expected_ns)

    def on_result(self, action: Action, took_ns: int) -> None:
        """Adapt the limit to the batch's duration, against the budget of its first request."""
        first = action.requests[0]
        if not first.best_effort:
            limit, objective_ns = self.limit(action.share, action.model), first.deadline_ns - first.arrival_ns
            regression = self.parameters.quantile_regression
            adapt = limit.adapt_by_regression if regression else limit.adapt_stepwise
            adapt(action.batch_size, took_ns, objective_ns, first.spec.batch_sizes, self.parameters)

    def on_share_lost(self, share: Share) -> None:
        """Discard the limits of the share."""
        self._limits.pop(share, None)


def quantile_line(points: Sequence[tuple[int, int]], q: float) -> tuple[float, float]:
    """Return (intercept, slope) of the line that a part `q` of the points (x, y) lies below; the slope is not negative.

    Linear quantile regression (Koenker and Bassett 1978): minimise the sum of q * r over points r above the line and of
    (1 - q) * -r over points below. With the best intercept for each slope this is convex in the slope. Needs two
    different x.
    """
    golden, ys = (math.sqrt(5) - 1) / 2, [y for _, y in points]
    low, high = 0.0, float(max(ys) - min(ys))
    left, right = high - golden * (high - low), low + golden * (high - low)
    left_loss, right_loss = quantile_loss(points, left, q), quantile_loss(points, right, q)
    for _ in range(48):  # golden sections, so that the slope is accurate to 1e-10 of the searched range
        if left_loss <= right_loss:
            high, right, right_loss = right, left, left_loss
            left = high - golden * (high - low)
            left_loss = quantile_loss(points, left, q)
        else:
            low, left, left_loss = left, right, right_loss
            right = low + golden * (high - low)
            right_loss = quantile_loss(points, right, q)
    slope = (low + high) / 2
    return _intercept(sorted(y - slope * x for x, y in points), q), slope


def quantile_loss(points: Sequence[tuple[int, int]], slope: float, q: float) -> float:
    """Return the loss of the line with this slope and the best intercept for it."""
    residuals = sorted(y - slope * x for x, y in points)
    middle = _intercept(residuals, q)
    return sum(
        q * (residual - middle) if residual > middle else (1 - q) * (middle - residual) for residual in residuals
    )


def _intercept(residuals: Sequence[float], q: float) -> float:
    """Return the `q` quantile of the sorted residuals."""
    residual: float = quantile(residuals, q)
    return residual
