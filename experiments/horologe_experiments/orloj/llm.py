"""Requests to a language model: the conversations of the Azure LLM inference trace 2023 (Patel et al., ISCA 2024).

A request alone takes c0 + a * context tokens + b * generated tokens, with a = 0.1 ms, b = 1 ms and c0 = 0.7 of the mean
solo time, as for ORLOJ's rows. A batch is padded to its longest request. Context tokens are known at arrival: they are
the workload's `length`. Generated tokens are not known. A workload is a contiguous part of the trace with another scale
of time; the seed chooses where the part begins.
"""

from __future__ import annotations

import csv
import functools
import gzip
from datetime import datetime
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from horologe_common.clock import ms, s, us
from horologe_experiments.orloj.cases import C0_SHARE
from horologe_experiments.orloj.length_distributions import P99
from horologe_experiments.orloj.workloads import Workload, padded_batching

if TYPE_CHECKING:
    from numpy.typing import NDArray

CONTEXT_NS, GENERATED_NS = us(100), ms(1)
BEGINS = 3
"""Random stream of a seed."""


class Trace(NamedTuple):
    """19,366 requests of about an hour, in order of arrival. Tokens by request."""

    arrival_ns: NDArray[np.int64]
    context: NDArray[np.int64]
    generated: NDArray[np.int64]


def build_llm(slo_x_p99: float, rate: float, requests: int, seed: int) -> Workload:
    """Build a workload at a mean `rate` in requests per second. Raises ValueError if the trace has fewer requests."""
    trace = read_trace()
    if not 1 < requests <= len(trace.context):
        raise ValueError(f"requests: got {requests}, wanted 2 to {len(trace.context)}")
    begin = int(np.random.default_rng([seed, BEGINS]).integers(len(trace.context) - requests + 1))
    part = slice(begin, begin + requests)
    arrival = trace.arrival_ns[part] - trace.arrival_ns[begin]
    solo = solo_ns(trace)
    return Workload(
        f"llm-conv x{slo_x_p99:g}",
        np.rint(arrival * (s(requests / rate) / arrival[-1])).astype(np.int64),
        solo[part],
        np.zeros(requests, np.int64),
        trace.context[part],
        round(slo_x_p99 * float(np.quantile(solo, P99))),
        padded_batching(c0_ns(trace)),
        (1.0,),
        (np.sort(solo),),
    )


def solo_ns(trace: Trace) -> NDArray[np.int64]:
    """Return the solo time of each request."""
    return c0_ns(trace) + _work_ns(trace)


def c0_ns(trace: Trace) -> int:
    """Return the time that does not depend on tokens: 0.7 of the mean, 762 ms."""
    return round(float(_work_ns(trace).mean()) * C0_SHARE / (1 - C0_SHARE))


@functools.cache
def read_trace() -> Trace:
    """Read the whole trace."""
    data = resources.files("horologe_experiments").joinpath("data", "azure_llm_conv.csv.gz").read_bytes()
    lines = list(csv.reader(gzip.decompress(data).decode().splitlines()))[1:]
    times = [datetime.fromisoformat(line[0][:26]) for line in lines]
    begin = times[0]
    arrival = [round((time - begin).total_seconds() * 1e6) for time in times]
    tokens = np.array([[int(line[1]), int(line[2])] for line in lines])
    return Trace(np.array(arrival) * us(1), tokens[:, 0], tokens[:, 1])


def _work_ns(trace: Trace) -> NDArray[np.int64]:
    return CONTEXT_NS * trace.context + GENERATED_NS * trace.generated
