"""Finish rates: the shares of requests that were answered in time, of a run and over its course."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import numpy as np

from horologe_common.clock import s
from horologe_load.samples import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_experiments.live.text_traffic import TextResult

NEAR, ROLLING = 0.02, 3
"""The finish rate has settled where that of so many windows on end is first this near to that of the second half."""


def of_run(applications: Sequence[str], ended: Sequence[TextResult]) -> dict[str, float]:
    """Shares of the requests of one run; latencies and batches of those in time."""
    good = [one for one in ended if one.outcome == Outcome.OK]
    took = sorted(one.took_ns for one in good) or [0]
    refused = sum(one.outcome == Outcome.REFUSED for one in ended)
    rates = {"finished": len(good) / len(ended)}
    for at, application in enumerate(applications):
        own = [one.outcome == Outcome.OK for one in ended if one.text.application == at]
        rates[application] = sum(own) / max(1, len(own))
    return rates | {
        "refused": refused / len(ended),
        "late": (len(ended) - len(good) - refused) / len(ended),
        "p50_ms": took[len(took) // 2] / 1e6,
        "p99_ms": took[len(took) * 99 // 100] / 1e6,
        "batch": sum(one.batch_size for one in good) / max(1, len(good)),
    }


def windows(seconds: float, window_s: float, runs: Sequence[Sequence[TextResult]]) -> list[tuple[float, float]]:
    """(second at which it begins, finish rate) of each window, over all runs."""
    count = int(seconds / window_s)
    sent, good = np.zeros(count), np.zeros(count)
    for one in (one for ended in runs for one in ended):
        at = int(one.text.at_ns / s(window_s))
        if at < count:
            sent[at] += 1
            good[at] += one.outcome == Outcome.OK
    rates = good / np.maximum(1, sent)
    return [(window_s * at, round(float(rate), 4)) for at, rate in enumerate(rates)]


def settled_s(points: Sequence[tuple[float, float]]) -> float | None:
    """From which second on the finish rate has been at its final level, that of the second half, for the first time."""
    rates = [rate for _, rate in points]
    final = statistics.fmean(rates[len(rates) // 2 :]) if rates else 0.0
    for at, (begin_s, _) in enumerate(points):
        if statistics.fmean(rates[at : at + ROLLING]) >= final - NEAR:
            return begin_s
    return None
