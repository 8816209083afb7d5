"""Decides whether simulated latencies meet an SLO, also on arrivals that the planner has not seen."""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCKS = 40
"""Parts of the trace whose miss rates are compared. Each must be longer than a burst for them to be independent."""


class Objective(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part `attainment` of the queries must have a latency of at most `slo_ns`.

    The planner chooses the cheapest configuration that just meets the SLO on its sample, so on another trace of the
    same process it may miss it. With `confidence` above 0, two upper prediction bounds for an unseen trace as long as
    the sample take the place of the sample's own values: of its rate, see `rate_margin`, and of its misses at that
    rate, see `missed_bound`. Both have the form m + q * s * sqrt(2 / B): m and s are the mean and the standard
    deviation over B consecutive blocks of the trace (method of batch means), q is the quantile of Student's
    distribution, and the factor 2 is there because both traces are random. A confidence of 0 is the paper's test.
    """

    slo_ns: int
    attainment: float = 0.99
    confidence: float = 0.999
    """Of each bound. The planner keeps the cheapest of hundreds of configurations that pass, so the bounds of this one
    are optimistic. At 0.99, one of 32 plans of the examples missed on unseen traffic. At 0.999 none did, and plans cost
    0.4% more."""

    def validate(self) -> None:
        """Raise ValueError, with the field, the value and what was wanted, if a field is invalid."""
        if self.slo_ns <= 0:
            raise ValueError(f"slo: got {self.slo_ns} ns, wanted more than 0")
        for field in ("attainment", "confidence"):
            if not 0 <= getattr(self, field) < 1:
                raise ValueError(f"{field}: got {getattr(self, field)}, wanted at least 0 and less than 1")

    def missed_limit(self, queries: int) -> int:
        """Return the most queries of a sample that may miss the SLO."""
        return int((1 - self.attainment) * queries + 1e-9)

    def rate_margin(self, arrivals_ns: NDArray[np.int64]) -> float:
        """Return by which part the rate of an unseen trace may exceed that of this one. 0 for few queries.

        A queue near its capacity turns a rate that is 1% higher into waiting times that grow without a bound, which
        the misses of a sample do not show.
        """
        if self.confidence <= 0 or arrivals_ns.size < BLOCKS:
            return 0.0
        counts = np.histogram(arrivals_ns, BLOCKS)[0]
        return self._half_width(counts) / float(counts.mean())

    def _half_width(self, blocks: NDArray[Any]) -> float:
        """Return the distance of the upper prediction bound from the mean of the blocks."""
        return student_quantile(self.confidence, BLOCKS - 1) * float(blocks.std(ddof=1)) * sqrt(2 / BLOCKS)

    def missed_bound(self, latencies_ns: NDArray[np.int64], slo_ns: int = 0) -> float:
        """Return the upper bound of the part of the queries that miss `slo_ns`, by default the objective's.

        `latencies_ns`: in the order of the trace. Traces with fewer queries than blocks have no bound beyond their own
        miss rate.
        """
        missed = latencies_ns > (slo_ns or self.slo_ns)
        mean = float(missed.mean())
        if self.confidence <= 0 or missed.size < BLOCKS:
            return mean
        edges = np.arange(BLOCKS + 1) * missed.size // BLOCKS
        blocks = np.add.reduceat(missed, edges[:-1], dtype=np.int64) / np.diff(edges)
        return mean + self._half_width(blocks)

    def is_met(self, missed_bound: float) -> bool:
        """Return whether a bound of missed queries meets the objective."""
        return missed_bound <= 1 - self.attainment + 1e-12

    def nearest_slo_ns(self, latencies_ns: NDArray[np.int64]) -> int:
        """Return the shortest SLO that these latencies meet."""
        values = np.sort(latencies_ns)
        low, high = 0, values.size - 1
        while low < high:
            middle = (low + high) // 2
            if self.is_met(self.missed_bound(latencies_ns, int(values[middle]))):
                high = middle
            else:
                low = middle + 1
        return int(values[low])


def percentile_ns(latencies_ns: NDArray[np.int64], part: float = 0.99) -> int:
    """Return the shortest latency that at least this part of the queries does not exceed."""
    place = max(0, int(np.ceil(part * latencies_ns.size - 1e-9)) - 1)
    return int(np.partition(latencies_ns, place)[place])


def student_quantile(part: float, freedom: int) -> float:
    """Return the quantile of Student's distribution, within 1% from 30 degrees of freedom on (Cornish-Fisher)."""
    z = NormalDist().inv_cdf(part)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
