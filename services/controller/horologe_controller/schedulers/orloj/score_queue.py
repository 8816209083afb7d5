"""The pending requests of one model, and the batch that ORLOJ takes of them next (its algorithm 1).

Scores are alpha e^(bt) + beta (section 4.4) in arrays with a place for each request, and all are computed at once when
a batch is chosen. alpha and beta are found anew only for requests that have passed a milestone: what is left until the
deadline is in another bin of the histogram. The paper keeps a hull of the points (alpha, beta) instead; what that costs
is measured beside this in benchmarks/orloj_queue.py.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from horologe_common.distribution import Floats
    from horologe_controller.schedulers.orloj.scores import Scores

    Places = NDArray[np.intp]
    Steps = tuple[tuple[int, float], ...]
    """(deadline in ns, what missing it costs), both increasing."""

K = TypeVar("K")
ROOM = 64
AHEAD, BEHIND = 100.0, -10.0
"""The base of times is set anew where bt leaves these bounds: at b = 1e-4 per ms, after 1,000 s (section 4.4)."""


class OrlojQueue(Generic[K]):
    """Requests by key. One is viable for a size while it can be expected to be in time in such a batch.

    Its laws: places are dense, the last request moving to where one has left; the numbers known for a score hold from
    `since` to before `until`.
    """

    def __init__(self, scores: Scores, *, earliest: bool = True) -> None:
        """`earliest`: the size with the earliest deadline goes first, as section 3.2 has it; else the one with the
        latest, as line 16 of algorithm 1 has. Of sizes with the same deadline the largest goes first in both."""
        self.scores = scores
        self.earliest = earliest
        self.rows = 0
        self._requests: list[tuple[K, int, Steps, int]] = []
        """(key, group, steps, rows) by place."""
        self._places: dict[K, int] = {}
        self._base_ns = 0
        self._due_ns: Floats = np.zeros((ROOM, 1))
        """(room, steps): deadlines, counted from the base time."""
        self._costs: Floats = np.zeros((ROOM, 1))
        """(room, steps): by how much missing each costs more than missing the one before; 0 where there are fewer."""
        self._last_ns: Floats = np.zeros(ROOM)
        """(room,): the last deadline of each: after it nothing can be gained."""
        self._groups: Places = np.zeros(ROOM, np.intp)
        self._rows: Places = np.zeros(ROOM, np.intp)
        self._smallest: Places = np.zeros(ROOM, np.intp)
        """(room,): the place of the smallest size that holds the rows of each."""
        self._known: Floats = np.zeros((4, len(scores.sizes), ROOM))
        """(alpha, beta, since, until; sizes; room)."""

    def __len__(self) -> int:
        return len(self._requests)

    def __getstate__(self) -> dict[str, Any]:
        """Arrays do not travel; they follow from this."""
        return {"scores": self.scores, "earliest": self.earliest, "base": self._base_ns, "requests": self._requests}

    def __setstate__(self, state: dict[str, Any]) -> None:
        OrlojQueue.__init__(self, state["scores"], earliest=state["earliest"])
        for key, group, steps, rows in state["requests"]:
            self.insert(key, group, steps, rows)
        self._rebase(state["base"])

    def insert(self, key: K, group: int, steps: Steps, rows: int = 1) -> None:
        """`group`: by the scores; `steps` has one for an ordinary SLO."""
        place, (room, most) = len(self._requests), self._due_ns.shape
        if place == room or len(steps) > most:
            self._grow(2 * room if place == room else room, max(most, len(steps)))
        self._due_ns[place] = self._costs[place] = before = 0.0
        for number, (deadline_ns, cost) in enumerate(steps):
            self._due_ns[place, number] = deadline_ns - self._base_ns
            self._costs[place, number] = cost - before
            before = cost
        self._last_ns[place], self._groups[place], self._rows[place] = steps[-1][0] - self._base_ns, group, rows
        self._smallest[place] = bisect_left(self.scores.sizes, rows)
        self._known[3, :, place] = -math.inf
        self._requests.append((key, group, steps, rows))
        self._places[key] = place
        self.rows += rows

    def _grow(self, room: int, steps: int) -> None:
        """`room` for requests, and so many steps for each."""
        more, others = room - self._last_ns.size, steps - self._due_ns.shape[1]
        for name in ("_due_ns", "_costs"):
            setattr(self, name, np.pad(getattr(self, name), ((0, more), (0, others))))
        for name in ("_last_ns", "_groups", "_rows", "_smallest"):
            setattr(self, name, np.pad(getattr(self, name), (0, more)))
        self._known = np.pad(self._known, ((0, 0), (0, 0), (0, more)))

    def remove(self, key: K) -> None:
        """Raises KeyError where there is no such request."""
        place, end = self._places.pop(key), len(self._requests) - 1
        self.rows -= self._requests[place][3]
        if place != end:
            self._requests[place] = self._requests[end]
            self._places[self._requests[end][0]] = place
            for array in (self._due_ns, self._costs, self._last_ns, self._groups, self._rows, self._smallest):
                array[place] = array[end]
            self._known[:, :, place] = self._known[:, :, end]
        del self._requests[end]

    def late(self, t_ns: int) -> list[K]:
        """The keys of those that are viable for no size any more."""
        late = np.flatnonzero(~self._alone(float(t_ns - self._base_ns)))
        return [self._requests[place][0] for place in late.tolist()]

    def choose(self, t_ns: int) -> tuple[int, list[K]] | None:
        """(size, keys) of the batch that is to start at `t_ns`, highest score first; nothing is removed by that."""
        t = t_ns - self._base_ns
        if not BEHIND <= self.scores.b_per_ns * t <= AHEAD:
            self._rebase(t_ns)
            t = 0
        found = self._candidate(float(t))
        if found is None:
            return None
        size, places = found
        top = self._top(size, places, float(t))
        return self.scores.sizes[size], [self._requests[place][0] for place in top]

    def _rebase(self, base_ns: int) -> None:
        """Count times from there: the one thing for which all scores are found anew."""
        shift_ns = base_ns - self._base_ns
        self._base_ns = base_ns
        self._due_ns -= shift_ns
        self._last_ns -= shift_ns
        self._known[3] = -math.inf

    def _alone(self, t: float) -> NDArray[np.bool_]:
        """(requests,): which can be expected to end in time in the smallest size there is for them."""
        count, expected_ns = len(self._requests), self.scores.expected_ns
        if self.rows == count:
            return self._viable(0, t)
        alone: NDArray[np.bool_] = (
            self._last_ns[:count] - expected_ns[self._smallest[:count], self._groups[:count]] >= t
        )
        return alone

    def _viable(self, size: int, t: float) -> NDArray[np.bool_]:
        """(requests,): which can be expected to end in time in a batch of this size (by its place) started at `t`."""
        count, expected_ns = len(self._requests), self.scores.expected_ns[size]
        takes_ns = expected_ns.take(self._groups[:count]) if expected_ns.size > 1 else expected_ns[0]
        viable: NDArray[np.bool_] = self._last_ns[:count] - takes_ns >= t
        if self.rows > count:
            viable &= self._rows[:count] <= self.scores.sizes[size]
        return viable

    def _candidate(self, t: float) -> tuple[int, Places] | None:
        """(place of the size, places of its requests): the first size, in order, for which there are enough.

        Whoever is viable for a size is so for all smaller ones that hold it, so deadlines grow with the size: the
        latest is that of the largest, and the earliest is the same for all sizes its request is viable for. Too few
        are enough where no smaller size holds one of them.
        """
        first = -1
        if self.earliest:
            alone = np.flatnonzero(self._alone(t))
            if not alone.size:
                return None
            first = int(alone[self._last_ns[alone].argmin()])
        for size in range(len(self.scores.sizes) - 1, -1, -1):
            if self.rows < self.scores.sizes[size] and size and self.rows == len(self._requests):
                continue
            viable = self._viable(size, t)
            if first < 0 or viable[first]:
                places = np.flatnonzero(viable)
                if self._enough(size, places):
                    return size, places
        return None

    def _enough(self, size: int, places: Places) -> bool:
        if self.rows == len(self._requests):
            return places.size >= (self.scores.sizes[size] if size else 1)
        return bool(self._rows[places].sum() >= self.scores.sizes[size] or (self._smallest[places] == size).any())

    def _top(self, size: int, places: Places, t: float) -> list[int]:
        """The places with the highest scores that fill a batch, highest first."""
        alpha, beta, since_ns, until_ns = self._known[:, size]
        if (stale := places[(until_ns[places] <= t) | (since_ns[places] > t)]).size:
            due_ns = self._due_ns[stale]
            found = self.scores.parts(size, self._groups[stale], due_ns - t, due_ns, self._costs[stale])
            self._known[:, size, stale] = found
        score = alpha[places] * math.exp(self.scores.b_per_ns * t) + beta[places]
        rows, single = self.scores.sizes[size], self.rows == len(self._requests)
        if single and places.size > rows:
            best = np.argpartition(score, places.size - rows)[-rows:]
            places, score = places[best], score[best]
        ordered: list[int] = places[np.argsort(-score, kind="stable")].tolist()
        if single:
            return ordered
        return self._fitting(ordered, rows)

    def _fitting(self, places: list[int], rows: int) -> list[int]:
        """In order, those that fit into so many rows."""
        taken = []
        for place, more in zip(places, self._rows[places].tolist(), strict=True):
            if more <= rows:
                taken.append(place)
                rows -= more
            if not rows:
                break
        return taken

    def check(self) -> None:
        assert [self._places[key] for key, *_ in self._requests] == list(range(len(self._places)))
        assert self.rows == sum(rows for *_, rows in self._requests)
        for place, (_, group, steps, rows) in enumerate(self._requests):
            assert (self._groups[place], self._rows[place]) == (group, rows)
            assert self._last_ns[place] == steps[-1][0] - self._base_ns
