"""Predicted durations of one model on one share: what was measured lately, else the profile.

A prediction that is too long refuses requests, and what is refused is not measured: so where one has refused for a
while all that have no more time, a request is let through to try it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.clock import s
from horologe_common.latency import RollingQuantile

if TYPE_CHECKING:
    from collections.abc import Mapping

SLOWER, FASTER = 1050, 950
"""Thousandths of the profile from which on a share, or a model, counts as slower or faster than it: less is noise."""
TRIAL_EXECS = 8
"""A trial against measurements comes so many times as long as a slow EXEC takes after the first refusal, or the last
trial: slow ones then take a ninth of a share's time at most. Where one EXEC in five takes 17 times as long, 46%, 38%
and 21% of the model's requests are served at 2, 4 and 8, and 85%, 88% and 92% of a neighbour's."""
TRIAL_NS = s(1)
"""One against a profile: after this long, twice as long with each that fails, at most `TRIAL_DOUBLINGS` times."""
TRIAL_DOUBLINGS = 6
PROFILE_PART = 4
"""A profile is doubted down to a quarter: on a machine in use, measured ones were up to five times too long."""
ENOUGH = 3
"""Measurements from which on their median is what a model mostly takes; of fewer, one may be the slow one."""


class Doubt(msgspec.Struct):
    """Since when a prediction refuses, how many trials of it failed in a row (-1: the last one did not), and how much
    time the last one had."""

    since_ns: int
    failed: int = 0
    within_ns: int = 0


class Estimate:
    """By batch size: recent measurements over the profile's seed.

    Size 0 is LOAD. `pace` is the share's: thousandths of the profile's durations that its actions lately took.
    """

    __slots__ = ("_current", "_doubts", "_faster", "_measured", "_pace", "seed_ns")

    def __init__(self, seed_ns: Mapping[int, int], pace: RollingQuantile) -> None:
        self.seed_ns = seed_ns
        self._pace = pace
        self._measured: dict[int, RollingQuantile] = {}
        self._current: dict[int, tuple[int, int, int]] = {}
        """Size -> (until when this holds, high quantile, median): asked ten times as often as measured."""
        self._faster = 0, 0
        """Until when batches are known to be faster than their profiles, and the slowest, in thousandths of its."""
        self._doubts: dict[int, Doubt] = {}

    def observe(self, now_ns: int, size: int, took_ns: int, *, steady: bool = True) -> None:
        """`steady`: a batch of this size always takes about as long, so that it tells how fast the share is."""
        seed_ns = self.seed_ns.get(size)
        if seed_ns is None:
            return
        measured = self._measured.get(size)
        if measured is None:
            measured = self._measured[size] = RollingQuantile()
        if self._doubts:
            self._tried(now_ns, size, took_ns)
        measured.observe(now_ns, took_ns)
        self._current[size] = measured.summary(now_ns)
        if size and steady:  # LOAD says nothing about EXEC
            permille = 1000 * took_ns // (seed_ns or 1)
            self._pace.observe(now_ns, permille)
            if permille < FASTER or self._faster[1]:
                self._compare(now_ns)

    def predict(self, now_ns: int, size: int) -> int:
        """Duration of a batch of `size`. Sizes not run lately are the profile, times how far others are off theirs."""
        current = self._current.get(size)
        if current is not None and now_ns <= current[0]:
            return current[1]
        return self._summary(now_ns, size)[1]

    def typical(self, now_ns: int, size: int) -> int:
        """What a batch of `size` mostly takes: sums of many are estimated by this, not by the high quantile."""
        current = self._current.get(size)
        if current is not None and now_ns <= current[0]:
            return current[2]
        return self._summary(now_ns, size)[2]

    def doubted(self, now_ns: int, size: int, within_ns: int) -> bool:
        """Whether a request that has only `within_ns`, less than predicted, may try: then less is predicted for it.

        Against measurements that is what most of them took; against a profile, a part of it.
        """
        doubt = self._doubts.get(size)
        if doubt is None:
            doubt = self._doubts[size] = Doubt(now_ns)
        hope_ns, pause_ns = self._hope(now_ns, size, doubt)
        if hope_ns > within_ns or now_ns < doubt.since_ns + pause_ns:
            return False
        doubt.since_ns, doubt.within_ns = now_ns, within_ns
        doubt.failed += doubt.failed < TRIAL_DOUBLINGS  # unless it is heard to have gone well
        self._current[size] = now_ns + within_ns, hope_ns, hope_ns
        return True

    def _hope(self, now_ns: int, size: int, doubt: Doubt) -> tuple[int, int]:
        """(how long it may take at best, the pause before a trial)."""
        measured, (until_ns, high_ns, median_ns) = self._measured.get(size), self._summary(now_ns, size)
        if measured is None or not until_ns:
            return median_ns // PROFILE_PART, TRIAL_NS << doubt.failed if doubt.failed >= 0 else 0
        if measured.count < ENOUGH:
            median_ns = min(median_ns, self._profiled(now_ns, size))
        return median_ns, TRIAL_EXECS * high_ns

    def _tried(self, now_ns: int, size: int, took_ns: int) -> None:
        """Once one has taken no longer than another had that was refused, slow ones before it say nothing any more."""
        doubt = self._doubts.get(size)
        if doubt is not None and took_ns <= doubt.within_ns:
            doubt.failed = -1
            self._measured[size].discard_above(doubt.within_ns)
            doubt.within_ns = 0
        elif doubt is not None:
            doubt.since_ns = now_ns

    def _summary(self, now_ns: int, size: int) -> tuple[int, int, int]:
        """What is left of the measurements, else the profile at the share's pace, or the model's if that is faster."""
        if (measured := self._measured.get(size)) is not None:
            current = self._current[size] = measured.summary(now_ns)
            if current[0]:
                return current
        seed_ns = self._profiled(now_ns, size)
        return 0, seed_ns, seed_ns

    def _profiled(self, now_ns: int, size: int) -> int:
        seed_ns = profiled_ns(self.seed_ns, size)
        if size and (permille := self._pace.high_quantile(now_ns) or 0) > SLOWER:
            seed_ns = seed_ns * permille // 1000
        elif size and self._faster[1] and now_ns <= self._faster[0]:
            seed_ns = seed_ns * self._faster[1] // 1000
        return seed_ns

    def _compare(self, now_ns: int) -> None:
        """Whether all sizes that were run lately are faster than profiled."""
        current = [(size, held) for size, held in self._current.items() if size and now_ns <= held[0]]
        permille = max(1000 * high_ns // (self.seed_ns[size] or 1) for size, (_, high_ns, _) in current)
        until_ns = max(until_ns for _, (until_ns, _, _) in current)
        self._faster = (until_ns, permille) if permille < FASTER else (0, 0)


def profiled_ns(seed_ns: Mapping[int, int], size: int) -> int:
    """What a batch of `size` takes by a profile; one of a size that it does not have (any more): its largest."""
    found_ns = seed_ns.get(size)
    return seed_ns[max(seed_ns)] if found_ns is None else found_ns
