"""Relief: which share loads a model whose shares lose requests, and which model it may evict for it.

Where one model fits in each share, most shares may hold a cheap model, because it was asked for first, and have little
work. Other models lose requests then. Shares with the cheap model must evict it, although it is asked for all the time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Generic, TypeVar

from horologe_common.clock import NEVER_NS, s

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from horologe_controller.core.cluster.share import Share

Key = TypeVar("Key")

MEMORY_NS = s(1)
"""Time after which a loss or a batch counts 1/e. A LOAD takes about 10 ms, and shows its effect within an SLO."""
CALM_PART = 0.25
"""Losses of a share that relieves others, as a part of theirs."""
SPARE_PART = 0.75
"""Part of their time that shares may be busy after they have taken over the work for a model: `CAPACITY_PART` of
`demand.py`. With more, some workloads gain and more lose (experiments/results/schedulers.md)."""
IDLE_NS = s(1)
"""Time without a request after which a model may be evicted for one whose shares lose requests."""
SETTLED_NS = s(3)
"""Time after a LOAD of a model in which none of its copies in use is spare. Without, models take shares from each other
in turn (experiments/results/schedulers.md)."""
ALL_MODELS = ""
MOST_SUMS, FORGOTTEN_NS = 256, 20 * MEMORY_NS
"""Sums that are kept without a look at their age, and the age from which they are dropped: e^-20 is left of them."""


def excess_losses(own: float, total: float) -> float:
    """Return the losses of a share, divided by the square of one more than those of all others."""
    return own / (1.0 + max(0.0, total - own)) ** 2


class RecentSums(Generic[Key]):
    """Exponentially decaying sums, by key."""

    def __init__(self) -> None:
        self._sums: dict[Key, tuple[int, float]] = {}
        """Key -> (time of the last addition, sum then)."""
        self._most = MOST_SUMS

    def __len__(self) -> int:
        return len(self._sums)

    def add(self, at_ns: int, key: Key, amount: float = 1.0) -> None:
        self._sums[key] = at_ns, self.at(at_ns, key) + amount
        if len(self._sums) > self._most:
            oldest_ns = at_ns - FORGOTTEN_NS
            self._sums = {key: entry for key, entry in self._sums.items() if entry[0] > oldest_ns}
            self._most = max(MOST_SUMS, 2 * len(self._sums))

    def at(self, now_ns: int, key: Key) -> float:
        """Return the recent sum of a key."""
        entry = self._sums.get(key)
        return 0.0 if entry is None else entry[1] * math.exp(min(0, entry[0] - now_ns) / MEMORY_NS)

    def discard(self, key: Key) -> None:
        self._sums.pop(key, None)


class RecentCounts:
    """Requests of the last second by model, about: those of a window, and a part of those of the window before it."""

    def __init__(self) -> None:
        self.last_ns: dict[str, int] = {}
        """Model -> arrival of its last request."""
        self._present: dict[str, int] = {}
        self._before: dict[str, int] = {}
        self._end_ns = 0

    def add(self, at_ns: int, model: str) -> None:
        if at_ns >= self._end_ns:
            self._begin_window(at_ns)
        self._present[model] = self._present.get(model, 0) + 1
        self.last_ns[model] = at_ns

    def _begin_window(self, at_ns: int) -> None:
        self._before = self._present if at_ns < self._end_ns + MEMORY_NS else {}
        self._present, self._end_ns = {}, at_ns + MEMORY_NS
        self.last_ns = {model: last_ns for model, last_ns in self.last_ns.items() if at_ns - last_ns <= IDLE_NS}

    def at(self, now_ns: int, model: str) -> float:
        """Return the recent requests for a model."""
        part = min(1.0, max(0.0, (self._end_ns - now_ns) / MEMORY_NS))
        return self._present.get(model, 0) + part * self._before.get(model, 0)


class Relief:
    """Recent losses and work of shares. Filled for policies that relieve shares."""

    def __init__(self) -> None:
        self._losses: RecentSums[Share | None] = RecentSums()
        """Requests that the share could have run, and no share had time for. None: the sum of all shares."""
        self._work: dict[Share, RecentSums[str]] = {}
        """Share -> ns of batches with deadlines, by model and of `ALL_MODELS`."""
        self._first_ns: int | None = None
        """Start of the first batch."""
        self._asked = RecentCounts()
        self._budget_ns: dict[str, int] = {}
        """Model -> time between arrival and deadline of its last request that was not best effort."""
        self._loaded_ns: dict[str, int] = {}
        """Model -> time of its last LOAD for demand."""

    def discard_share(self, share: Share) -> None:
        self._losses.discard(share)
        self._work.pop(share, None)

    def record_request(self, arrival_ns: int, model: str, budget_ns: int) -> None:
        """Count a request. `budget_ns`: how long after its arrival it may be answered; 0 if best effort."""
        self._asked.add(arrival_ns, model)
        if budget_ns:
            self._budget_ns[model] = budget_ns

    def record_load(self, now_ns: int, model: str) -> None:
        self._loaded_ns[model] = now_ns

    def record_loss(self, now_ns: int, shares: Iterable[Share]) -> None:
        """Count a request that any of these shares could have run, and none had time for."""
        for share in shares:
            self._losses.add(now_ns, share)
            self._losses.add(now_ns, None)

    def total_losses(self, now_ns: int) -> float:
        """Return the sum of the recent losses of all shares."""
        return self._losses.at(now_ns, None)

    def losses(self, now_ns: int, share: Share) -> float:
        """Return the recent losses of a share."""
        return self._losses.at(now_ns, share)

    def record_batch(self, start_ns: int, share: Share, model: str, expected_ns: float) -> None:
        """Count a batch of requests with deadlines."""
        if (work := self._work.get(share)) is None:
            work = self._work[share] = RecentSums()
        if self._first_ns is None:
            self._first_ns = start_ns
        work.add(start_ns, model, expected_ns)
        work.add(start_ns, ALL_MODELS, expected_ns)

    def is_calm(self, now_ns: int, share: Share, holders: Iterable[Share]) -> bool:
        """Return whether the share loses far fewer requests than each of the holders of a model."""
        losses = self._losses
        return losses.at(now_ns, share) < CALM_PART * min([losses.at(now_ns, holder) for holder in holders])

    def is_spare(self, now_ns: int, share: Share, model: str, holders: Mapping[Share, bool]) -> bool:
        """Return whether the share can do without the model. `holders`: its shares, and whether it is loaded there.

        It is idle, or has not needed a LOAD lately, and its other shares have time for what this one does. Before work
        has been recorded for a while, only idle models are spare.
        """
        if now_ns - self._asked.last_ns.get(model, now_ns - IDLE_NS - 1) > IDLE_NS:
            return True
        if now_ns - self._loaded_ns.get(model, now_ns - SETTLED_NS) < SETTLED_NS:
            return False
        others = [other for other, loaded in holders.items() if loaded and other is not share]
        age_ns = now_ns - (now_ns if self._first_ns is None else self._first_ns)
        if age_ns < MEMORY_NS:
            return False
        most_ns = SPARE_PART * MEMORY_NS * (1.0 - math.exp(-age_ns / MEMORY_NS))
        free_ns = sum([max(0.0, most_ns - self._work_ns(now_ns, other, ALL_MODELS)) for other in others])
        return bool(others) and free_ns >= self._work_ns(now_ns, share, model)

    def asked(self, now_ns: int, model: str) -> float:
        """Return how many requests have been for the model lately: in `MEMORY_NS`, if they come steadily."""
        return self._asked.at(now_ns, model)

    def budget_ns(self, model: str) -> int:
        """Return the time between arrival and deadline of the model's last request; NEVER_NS if all are best effort."""
        return self._budget_ns.get(model, NEVER_NS)

    def utilisation(self, now_ns: int, share: Share) -> float:
        """Return the part of its recent time for which the share has run batches with deadlines."""
        return self._work_ns(now_ns, share, ALL_MODELS) / MEMORY_NS

    def hand_over(self, now_ns: int, share: Share, model: str, holders: Mapping[Share, bool]) -> None:
        """Count the work of the share for a model that it gives up as work of the other shares with the model."""
        work_ns = self._work_ns(now_ns, share, model)
        others = [other for other, loaded in holders.items() if loaded and other is not share]
        for other in others if work_ns else ():
            self.record_batch(now_ns, other, model, work_ns / len(others))
        if work_ns:
            self._work[share].add(now_ns, ALL_MODELS, -work_ns)
            self._work[share].discard(model)

    def _work_ns(self, now_ns: int, share: Share, model: str) -> float:
        work = self._work.get(share)
        return 0.0 if work is None else work.at(now_ns, model)
