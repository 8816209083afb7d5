"""Finish rates: the shares of requests that were answered in time, in total and by time."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import numpy as np

from horologe_common.clock import s
from horologe_load.samples import ClientOutcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_experiments.live.text_traffic import TextResult

NEAR, ROLLING = 0.02, 3
"""The finish rate has settled when `ROLLING` consecutive windows are within `NEAR` of the second half of the run."""


def rates_of_run(applications: Sequence[str], results: Sequence[TextResult]) -> dict[str, float]:
    """Return shares of the requests of one run, and latencies and batch sizes of those in time."""
    in_time = [result for result in results if result.outcome == ClientOutcome.OK]
    took = sorted(result.took_ns for result in in_time) or [0]
    refused = sum(result.outcome == ClientOutcome.REFUSED for result in results)
    rates = {"finished": len(in_time) / len(results)}
    for number, application in enumerate(applications):
        finished = [result.outcome == ClientOutcome.OK for result in results if result.text.application == number]
        rates[application] = sum(finished) / max(1, len(finished))
    return rates | {
        "refused": refused / len(results),
        "late": (len(results) - len(in_time) - refused) / len(results),
        "p50_ms": took[len(took) // 2] / 1e6,
        "p99_ms": took[len(took) * 99 // 100] / 1e6,
        "batch": sum(result.batch_size for result in in_time) / max(1, len(in_time)),
    }


def window_rates(seconds: float, window_s: float, runs: Sequence[Sequence[TextResult]]) -> list[tuple[float, float]]:
    """Return (first second, finish rate) of each window, over all runs."""
    count = int(seconds / window_s)
    sent, finished = np.zeros(count), np.zeros(count)
    for result in (result for results in runs for result in results):
        window = int(result.text.at_ns / s(window_s))
        if window < count:
            sent[window] += 1
            finished[window] += result.outcome == ClientOutcome.OK
    rates = finished / np.maximum(1, sent)
    return [(window_s * window, round(float(rate), 4)) for window, rate in enumerate(rates)]


def settled_s(points: Sequence[tuple[float, float]]) -> float | None:
    """Return the first second at which the finish rate is at the level of the second half; None if never."""
    rates = [rate for _, rate in points]
    final = statistics.fmean(rates[len(rates) // 2 :]) if rates else 0.0
    for number, (begin_s, _) in enumerate(points):
        if statistics.fmean(rates[number : number + ROLLING]) >= final - NEAR:
            return begin_s
    return None
