"""Workloads: arrival times and solo times of requests, and execution times of batches, for a row at a rate.

Arrivals are the Azure Functions trace (ORLOJ section 5.2) scaled to the rate. The calls per minute of all 500 functions
are stretched or compressed so that a run of any number of requests covers all 480 minutes. Within a minute arrivals are
uniform, which is a Poisson process given their number. A seed gives the same arrivals to every case and rate, up to the
scale of time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from horologe_common.clock import ms, s
from horologe_experiments.orloj.cases import C0_SHARE
from horologe_experiments.orloj.length_distributions import MEAN_LENGTH, P99, draw_lengths, length_quantile
from horologe_experiments.traces.azure_functions import read_calls
from horologe_sim.scenario.scenario import CATALOGUE_SIZES as SIZES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from horologe_experiments.orloj.cases import Case, TableRow

ARRIVALS, LENGTHS = 1, 2
"""Random streams of a seed."""


class Batching(msgspec.Struct, frozen=True):
    """Execution time of a batch by its size: `fixed_ns + per * longest`, with the solo time of its longest request.

    For dynamic models ORLOJ's eq. 3 and 4 say L_B = c0 + c1 k max l, and a request alone takes S = c0 + c1 l. So
    L_B = c0 + k (max S - c0). A batch of another number of requests runs as the next larger size.
    """

    fixed_ns: tuple[int, ...]
    per: tuple[int, ...]
    sizes: tuple[int, ...] = SIZES

    def batch_ns(self, requests: int, longest_ns: int) -> int:
        """Return the execution time of a batch of `requests`. Raises ValueError for more than the largest size."""
        for size, fixed_ns, per in zip(self.sizes, self.fixed_ns, self.per, strict=True):
            if requests <= size:
                return fixed_ns + per * longest_ns
        raise ValueError(f"requests: got {requests}, wanted at most {self.sizes[-1]}")


class Workload(msgspec.Struct, frozen=True):
    """Requests in order of arrival; every array has one entry per request. All requests have the same SLO."""

    name: str
    arrival_ns: NDArray[np.int64]
    solo_ns: NDArray[np.int64]
    application: NDArray[np.int64]
    """Index of the application."""
    length: NDArray[np.int64]
    """Length of the input, which is known at arrival."""
    slo_ns: int
    batching: Batching
    shares: tuple[float, ...]
    """Share of the requests by application."""
    solos_ns: tuple[NDArray[np.int64], ...]
    """Solo times by application, all equally likely."""

    @property
    def requests(self) -> int:
        """Return the number of requests."""
        return len(self.arrival_ns)


def build_row(row: TableRow, rate: float, requests: int, seed: int) -> Workload:
    """Build the workload of a row at a mean `rate` in requests per second. Deterministic by seed."""
    return build_case(row.case, row.slo_x_p99, rate, requests, seed)


def build_case(case: Case, slo_x_p99: float, rate: float, requests: int, seed: int) -> Workload:
    """Build the workload of a case with an SLO of `slo_x_p99` times its P99."""
    applications = case.applications()
    mean_ns = ms(case.mean_ms)
    c0_ns = 0 if case.profile_ms else round(C0_SHARE * mean_ns)
    length_ns = max(1, round((mean_ns - c0_ns) / MEAN_LENGTH))
    p99_ns = ms(case.p99_ms) or c0_ns + length_ns * length_quantile(applications, P99)
    application, length = draw_lengths(applications, requests, np.random.default_rng([seed, LENGTHS]))
    return Workload(
        f"{case.name} x{slo_x_p99:g}",
        draw_arrivals(rate, requests, seed),
        c0_ns + length_ns * length,
        application,
        length,
        round(slo_x_p99 * p99_ns),
        static_batching(case) if case.profile_ms else padded_batching(c0_ns),
        tuple(distribution.share for distribution in applications),
        tuple(c0_ns + length_ns * distribution.lengths for distribution in applications),
    )


def draw_arrivals(rate: float, requests: int, seed: int) -> NDArray[np.int64]:
    """Draw arrival times in nanoseconds: the minutes of the trace scaled to `requests / rate` seconds."""
    edges = np.concatenate([[0.0], np.cumsum(read_calls().sum(0))])
    drawn = np.sort(np.random.default_rng([seed, ARRIVALS]).random(requests)) * edges[-1]
    parts = np.interp(drawn, edges, np.linspace(0.0, 1.0, len(edges)))
    times: NDArray[np.int64] = np.rint(parts * s(requests / rate)).astype(np.int64)
    return times


def padded_batching(c0_ns: int) -> Batching:
    """Return the batching of a dynamic model (eq. 3 and 4), which pads requests to the longest."""
    return Batching(tuple(c0_ns * (1 - size) for size in SIZES), SIZES)


def static_batching(case: Case) -> Batching:
    """Return the batching of a model whose execution time depends only on the batch size."""
    return Batching(tuple(ms(batch_ms) for batch_ms in case.profile_ms), (0,) * len(SIZES))
