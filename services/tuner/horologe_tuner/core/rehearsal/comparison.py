"""Chooses a scheduler by what each would have served: a change must gain clearly more than chance explains.

All candidates play the same requests, so their difference by block of time is a paired sample. Its mean over all blocks
is the gain. The standard error of the mean follows from the differences between blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from horologe_tuner.core.rehearsal.rehearsal_documents import RehearsalScores

LEAST_GAIN = 0.01
"""Share of the requests that another scheduler must serve more, before it is used."""
KEPT_GAIN = 0.003
"""A scheduler that serves less than this more than the default is replaced by the default."""
SURE = 1.5
"""Standard errors that a gain must be above 0. A change that was wrong costs little: the next rehearsal undoes it."""
RECENT_PART = 3
"""The last third of the requests must not contradict a gain by more than its standard error: the traffic may have
changed since the others came."""


class Gain(NamedTuple):
    """Share of the requests that one candidate serves more than another, and its standard error."""

    mean: float
    error: float

    @property
    def is_clear(self) -> bool:
        """Return whether the gain is worth a change."""
        return self.mean >= LEAST_GAIN and self.mean >= SURE * self.error


def gain_of(scores: RehearsalScores, name: str, other: str, first: int = 0) -> Gain:
    """Return the gain of candidate `name` over `other`, from block `first` on."""
    more = np.array(scores.in_time[name][first:], float) - np.array(scores.in_time[other][first:], float)
    total = max(1, sum(scores.sent[first:]))
    error = float(np.sqrt(more.size * more.var(ddof=1))) / total if more.size > 1 else 1.0
    return Gain(float(more.sum()) / total, error)


def choose_candidate(scores: RehearsalScores, before: RehearsalScores, current: str, default: str) -> str:
    """Return the candidate to use. `current` and `default` must have scores. `before`: scores of the last rehearsal.

    The best one replaces the current one if its gain is clear, and was at least `LEAST_GAIN` in the rehearsal before.
    Else the default replaces a current one that is hardly better than it. Candidates that clearly serve less than the
    default of the recent requests are left out.
    """
    first = len(scores.sent) - len(scores.sent) // RECENT_PART
    recent = {name: gain_of(scores, name, default, first) for name in scores.in_time}
    names = [name for name, gain in recent.items() if gain.mean >= -gain.error]
    base = current
    if current not in names or (current != default and gain_of(scores, current, default).mean < KEPT_GAIN):
        base = default
    proven = [name for name in names if is_proven(scores, before, name, base)]
    return max(proven, key=lambda name: sum(scores.in_time[name]), default=base)


def is_proven(scores: RehearsalScores, before: RehearsalScores, name: str, other: str) -> bool:
    """Return whether two rehearsals in a row show that a candidate gains over another one.

    Where models do not fit in memory, a replay depends on the order of the first LOADs. Its blocks then are not
    independent, so their standard error is too small. Another replay starts from other loaded models.
    """
    if not {name, other} <= before.in_time.keys():
        return False
    return gain_of(scores, name, other).is_clear and gain_of(before, name, other).mean >= LEAST_GAIN


def range_served(scores: RehearsalScores, name: str) -> tuple[float, float]:
    """Return the smallest and the largest share of a block that a candidate answers in time."""
    shares = [served / sent for served, sent in zip(scores.in_time[name], scores.sent, strict=True) if sent] or [0.0]
    return min(shares), max(shares)


def share_served(scores: RehearsalScores, name: str, first: int = 0) -> float:
    """Return the share of the requests that a candidate answers in time, from block `first` on."""
    return sum(scores.in_time[name][first:]) / max(1, sum(scores.sent[first:]))
