"""A row at a rate: when requests arrive, what each takes alone, and what a batch of them takes.

Arrivals are the Azure Functions trace (section 5.2) scaled to the rate: the calls of all 500 functions, minute by
minute, laid over the run, so that a run of any number of requests sees all 480 minutes of it; within a minute arrivals
are uniform, which is a Poisson process given how many there are. A seed gives the same arrivals to every case and
rate, but for the scale of time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from horologe_common.clock import ms, s
from horologe_experiments.orloj.cases import C0_SHARE
from horologe_experiments.orloj.length_distributions import MEAN_LENGTH, P99, draw, quantile
from horologe_experiments.traces.azure_functions import calls
from horologe_sim.scenario.clockwork_models import SIZES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from horologe_experiments.orloj.cases import Case, Row

ARRIVALS, LENGTHS = 1, 2
"""Streams of a seed."""


class Batching(msgspec.Struct, frozen=True):
    """What a batch takes: `fixed_ns + per * longest`, by its size; `longest` is what its longest request takes alone.

    For dynamic models that is eq. 3 and 4, L_B = c0 + c1 k max l, where a request alone takes S = c0 + c1 l:
    L_B = c0 + k (max S - c0). A batch of a number that is no size runs as the next larger size.
    """

    fixed_ns: tuple[int, ...]
    per: tuple[int, ...]
    sizes: tuple[int, ...] = SIZES

    def batch_ns(self, requests: int, longest_ns: int) -> int:
        """What `requests` take together. Raises ValueError for more than the largest size."""
        for size, fixed_ns, per in zip(self.sizes, self.fixed_ns, self.per, strict=True):
            if requests <= size:
                return fixed_ns + per * longest_ns
        raise ValueError(f"requests: got {requests}, wanted at most {self.sizes[-1]}")


class Workload(msgspec.Struct, frozen=True):
    """Requests in order of arrival, from 0; all arrays have one entry for each. All have the same SLO."""

    name: str
    arrival_ns: NDArray[np.int64]
    solo_ns: NDArray[np.int64]
    application: NDArray[np.int64]
    """A place in `applications`."""
    length: NDArray[np.int64]
    """What can be known of a request at arrival: its input's length."""
    slo_ns: int
    batching: Batching
    shares: tuple[float, ...]
    """Of the applications."""
    solos_ns: tuple[NDArray[np.int64], ...]
    """What requests of each application take alone, all equally likely."""

    @property
    def requests(self) -> int:
        return len(self.arrival_ns)


def build(row: Row, rate: float, requests: int, seed: int) -> Workload:
    """`row` at a mean `rate` (requests a second). Deterministic by seed."""
    return build_case(row.case, row.slo_x_p99, rate, requests, seed)


def build_case(case: Case, slo_x_p99: float, rate: float, requests: int, seed: int) -> Workload:
    """`case` with an SLO of `slo_x_p99` times its P99."""
    applications = case.applications()
    mean_ns = ms(case.mean_ms)
    c0_ns = 0 if case.profile_ms else round(C0_SHARE * mean_ns)
    length_ns = max(1, round((mean_ns - c0_ns) / MEAN_LENGTH))
    p99_ns = ms(case.p99_ms) or c0_ns + length_ns * quantile(applications, P99)
    chosen, length = draw(applications, requests, np.random.default_rng([seed, LENGTHS]))
    return Workload(
        f"{case.name} x{slo_x_p99:g}",
        arrivals(rate, requests, seed),
        c0_ns + length_ns * length,
        chosen,
        length,
        round(slo_x_p99 * p99_ns),
        _static(case) if case.profile_ms else padded(c0_ns),
        tuple(one.share for one in applications),
        tuple(c0_ns + length_ns * one.lengths for one in applications),
    )


def arrivals(rate: float, requests: int, seed: int) -> NDArray[np.int64]:
    """Times of arrival, ns: the trace's minutes laid over `requests / rate` seconds."""
    edges = np.concatenate([[0.0], np.cumsum(calls().sum(0))])
    drawn = np.sort(np.random.default_rng([seed, ARRIVALS]).random(requests)) * edges[-1]
    parts = np.interp(drawn, edges, np.linspace(0.0, 1.0, len(edges)))
    times: NDArray[np.int64] = np.rint(parts * s(requests / rate)).astype(np.int64)
    return times


def padded(c0_ns: int) -> Batching:
    """Of a dynamic model, by eq. 3 and 4: all are padded to the longest."""
    return Batching(tuple(c0_ns * (1 - size) for size in SIZES), SIZES)


def _static(case: Case) -> Batching:
    return Batching(tuple(ms(one) for one in case.profile_ms), (0,) * len(SIZES))
