"""Head-of-line blocking: requests that arrive while a batch runs, and have too little time left after it.

An EXEC cannot be interrupted. A batch of T on a share costs the sum over its models of

    arrival rate * max(0, T - slack)

requests, where the slack is the time from arrival to deadline, less the time alone. Example: a batch of 70 ms serves
two requests. A model of 3 ms with an SLO of 23 ms is asked 100 times a second. The batch costs 100/s * 50 ms = 5 of
its requests, more than it serves.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import TYPE_CHECKING

from horologe_common.clock import NEVER_NS, ms, us
from horologe_controller.core.cluster.estimates import LOAD_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from horologe_controller.core.cluster.share import Share
    from horologe_controller.schedulers.horologe import RecentLoad

REFRESH_NS, REFRESH_MODEL_NS = ms(50), us(300)
"""Least time between two updates of a share, and the time for each model of each share: an update takes about 3 us for
a model, so updates take a hundredth of the controller's time. Not tuned."""


class ShareArrivals:
    """Arrivals that a share is to serve, by slack."""

    __slots__ = ("_arrivals", "_part", "_rates", "_slacks_ns", "_weighted", "least_ns", "until_ns")

    def __init__(self, until_ns: int, arrivals: dict[str, tuple[int, float]], part: float) -> None:
        """`arrivals`: (slack, requests per ns) of each model. `part`: of the arrivals that the share could serve."""
        self.until_ns = until_ns
        self._arrivals = arrivals
        self._part = part
        self._slacks_ns: list[int] = []
        self._rates, self._weighted = [0.0], [0.0]
        for slack_ns, rate in sorted(arrivals.values()):
            self._slacks_ns.append(slack_ns)
            self._rates.append(self._rates[-1] + rate)
            self._weighted.append(self._weighted[-1] + rate * slack_ns)
        self.least_ns = self._slacks_ns[0] if arrivals else NEVER_NS
        """A batch that takes no longer than this costs no request."""

    def lost_to(self, batch_ns: int, model: str = "") -> float:
        """Return how many requests a batch of this duration costs, without those of `model`."""
        at = bisect_left(self._slacks_ns, batch_ns)
        slack_ns, rate = self._arrivals.get(model, (batch_ns, 0.0))
        own = rate * max(0, batch_ns - slack_ns)
        return self._part * max(0.0, self._rates[at] * batch_ns - self._weighted[at] - own)


class BlockedArrivals:
    """Arrivals of each share, updated now and then. `weight`: value of a request of a model; None: all are worth 1."""

    def __init__(self, load: RecentLoad, weight: Callable[[str], float] | None = None) -> None:
        self._load = load
        self._weight = weight
        self._shares: dict[Share, ShareArrivals] = {}

    def on_share(self, now_ns: int, share: Share) -> ShareArrivals:
        """Return the arrivals that the share is to serve."""
        arrivals = self._shares.get(share)
        if arrivals is None or now_ns > arrivals.until_ns:
            arrivals = self._shares[share] = self._measure(now_ns, share)
        return arrivals

    def discard_share(self, share: Share) -> None:
        self._shares.pop(share, None)

    def _measure(self, now_ns: int, share: Share) -> ShareArrivals:
        """Return the recent arrivals of the models on the share.

        With k shares that hold a model, each is to serve 1/k of its requests. The utilisation is the probability that
        another share is busy. It stays so for the slack of a request with exp(-slack / mean batch), as if batches ended
        by a Poisson process. If the share could not serve all arrivals without the batch, the part that it could serve
        counts.
        """
        load, work = self._load, 0.0
        arrivals: dict[str, tuple[int, float]] = {}
        busy = min(1.0, load.utilisation(now_ns, share))
        for model in share.resident:
            budget_ns, estimate = load.budget_ns.get(model), share.estimates.get(model)
            if budget_ns is None or estimate is None:
                continue
            alone_ns, row_ns = _fastest(estimate.seed_ns, budget_ns)
            if alone_ns < budget_ns:
                holders = max(1, share.residency.count_resident(model))
                slack_ns = budget_ns - alone_ns
                others_busy = (busy * math.exp(-slack_ns / load.batch_ns)) ** (holders - 1)
                rate = others_busy / (holders * load.mean_gap_ns(now_ns, model))
                work += rate * row_ns
                arrivals[model] = slack_ns, rate * self._weight(model) if self._weight else rate
        refresh_ns = max(REFRESH_NS, REFRESH_MODEL_NS * len(share.resident) * (1 + len(self._shares)))
        return ShareArrivals(now_ns + refresh_ns, arrivals, 1 / max(1.0, work))


def _fastest(seed_ns: Mapping[int, int], budget_ns: int) -> tuple[int, float]:
    """Return (shortest time of a batch, least time of a row in a batch within the budget; of one alone if none is)."""
    batches = [(took_ns, took_ns / size) for size, took_ns in seed_ns.items() if size != LOAD_SIZE]
    alone_ns, row_ns = min(batches)
    return alone_ns, min([row_ns for took_ns, row_ns in batches if took_ns <= budget_ns], default=row_ns)
