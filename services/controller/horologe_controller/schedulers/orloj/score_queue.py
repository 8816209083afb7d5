"""Pending requests of one model, and the batch that ORLOJ takes of them next (its algorithm 1).

Scores are alpha e^(bt) + beta (section 4.4) in arrays with a place for each request. All scores are computed at once
when a batch is chosen. alpha and beta are recomputed only for requests that have passed a milestone: the time left
until the deadline is in another bin of the histogram. The paper keeps a hull of the points (alpha, beta) instead.
benchmarks/orloj_queue.py measures both.
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

Key = TypeVar("Key")
INITIAL_ROOM = 64
"""Requests that the arrays of a new queue have places for."""
MAX_BT = 100.0
"""Bound of bt, so that e^(bt) does not overflow. Beyond it the base of times is moved: at b = 1e-4 per ms, after
1,000 s (section 4.4)."""


class ScoreQueue(Generic[Key]):
    """Requests by key. A request is viable for a batch size while it can be expected to be in time in such a batch.

    Invariants: places are dense, as the last request moves to the place of a removed one. The stored alpha and beta of
    a score are valid from `since` to before `until`.
    """

    def __init__(self, scores: Scores, *, earliest: bool = True) -> None:
        """Create an empty queue.

        `earliest`: the size with the earliest deadline goes first (section 3.2); otherwise the size with the latest
        (line 16 of algorithm 1). Of sizes with the same deadline, the largest goes first in both cases.
        """
        self.scores = scores
        self.earliest = earliest
        self.rows = 0
        self._requests: list[tuple[Key, int, int, int]] = []
        """(key, group, deadline, rows) by place."""
        self._places: dict[Key, int] = {}
        self._base_ns = 0
        self._due_ns: Floats = np.zeros(INITIAL_ROOM)
        """(room,): deadlines, relative to the base time."""
        self._groups: Places = np.zeros(INITIAL_ROOM, np.intp)
        self._rows: Places = np.zeros(INITIAL_ROOM, np.intp)
        self._smallest: Places = np.zeros(INITIAL_ROOM, np.intp)
        """(room,): index of the smallest size that holds the rows of each request."""
        self._score_parts: Floats = np.zeros((4, len(scores.sizes), INITIAL_ROOM))
        """(alpha, beta, since, until; sizes; room)."""

    def __len__(self) -> int:
        return len(self._requests)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the arrays, which are derived from it."""
        return {"scores": self.scores, "earliest": self.earliest, "base": self._base_ns, "requests": self._requests}

    def __setstate__(self, state: dict[str, Any]) -> None:
        ScoreQueue.__init__(self, state["scores"], earliest=state["earliest"])
        for key, group, deadline_ns, rows in state["requests"]:
            self.insert(key, group, deadline_ns, rows)
        self._rebase(state["base"])

    def insert(self, key: Key, group: int, deadline_ns: int, rows: int = 1) -> None:
        """Add a request. `group` is an index of the scores' groups."""
        place = len(self._requests)
        if place == self._due_ns.size:
            self._grow()
        self._due_ns[place], self._groups[place], self._rows[place] = deadline_ns - self._base_ns, group, rows
        self._smallest[place] = bisect_left(self.scores.sizes, rows)
        self._score_parts[3, :, place] = -math.inf
        self._requests.append((key, group, deadline_ns, rows))
        self._places[key] = place
        self.rows += rows

    def _grow(self) -> None:
        """Double the room of the arrays."""
        more = self._due_ns.size
        for name in ("_due_ns", "_groups", "_rows", "_smallest"):
            setattr(self, name, np.pad(getattr(self, name), (0, more)))
        self._score_parts = np.pad(self._score_parts, ((0, 0), (0, 0), (0, more)))

    def remove(self, key: Key) -> None:
        """Remove a request. Raises KeyError if it is not in the queue."""
        place, end = self._places.pop(key), len(self._requests) - 1
        self.rows -= self._requests[place][3]
        if place != end:
            self._requests[place] = self._requests[end]
            self._places[self._requests[end][0]] = place
            for array in (self._due_ns, self._groups, self._rows, self._smallest):
                array[place] = array[end]
            self._score_parts[:, :, place] = self._score_parts[:, :, end]
        del self._requests[end]

    def timed_out_keys(self, t_ns: int) -> list[Key]:
        """Return the keys of requests that are viable for no size any more."""
        timed_out = np.flatnonzero(~self._viable_alone(float(t_ns - self._base_ns)))
        return [self._requests[place][0] for place in timed_out.tolist()]

    def choose_batch(self, t_ns: int) -> tuple[int, list[Key]] | None:
        """Return (size, keys) of the batch to start at `t_ns`, highest score first. The requests stay in the queue."""
        t = t_ns - self._base_ns
        if abs(self.scores.b_per_ns * t) > MAX_BT:
            self._rebase(t_ns)
            t = 0
        candidate = self._candidate(float(t))
        if candidate is None:
            return None
        size, places = candidate
        top = self._top(size, places, float(t))
        return self.scores.sizes[size], [self._requests[place][0] for place in top]

    def _rebase(self, base_ns: int) -> None:
        """Make `base_ns` the base of times. This invalidates all scores."""
        shift_ns = base_ns - self._base_ns
        self._base_ns = base_ns
        self._due_ns -= shift_ns
        self._score_parts[3] = -math.inf

    def _viable_alone(self, t: float) -> NDArray[np.bool_]:
        """Return (requests,): whether each can be expected to be in time in the smallest size that holds it."""
        count, expected_ns = len(self._requests), self.scores.expected_ns
        if self.rows == count:
            return self._viable(0, t)
        alone: NDArray[np.bool_] = self._due_ns[:count] - expected_ns[self._smallest[:count], self._groups[:count]] >= t
        return alone

    def _viable(self, size: int, t: float) -> NDArray[np.bool_]:
        """Return (requests,): whether each can be expected to be in time in a batch started at `t`.

        `size` is an index of the scores' sizes.
        """
        count, expected_ns = len(self._requests), self.scores.expected_ns[size]
        takes_ns = expected_ns.take(self._groups[:count]) if expected_ns.size > 1 else expected_ns[0]
        viable: NDArray[np.bool_] = self._due_ns[:count] - takes_ns >= t
        if self.rows > count:
            viable &= self._rows[:count] <= self.scores.sizes[size]
        return viable

    def _candidate(self, t: float) -> tuple[int, Places] | None:
        """Return (index of the size, places of its requests) of the first size, in order, with enough viable requests.

        A request that is viable for a size is viable for all smaller sizes that hold it. So the latest deadline is that
        of the largest size, and the earliest deadline is the same for all sizes that its request is viable for. Too few
        requests are enough if no smaller size holds one of them.
        """
        first = -1
        if self.earliest:
            alone = np.flatnonzero(self._viable_alone(t))
            if not alone.size:
                return None
            first = int(alone[self._due_ns[alone].argmin()])
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
        """Return the places with the highest scores that fill a batch, highest first."""
        alpha, beta, since_ns, until_ns = self._score_parts[:, size]
        if (stale := places[(until_ns[places] <= t) | (since_ns[places] > t)]).size:
            parts = self.scores.parts(size, self._groups[stale], t, self._due_ns[stale])
            self._score_parts[:, size, stale] = parts
        score = alpha[places] * math.exp(self.scores.b_per_ns * t) + beta[places]
        rows, single = self.scores.sizes[size], self.rows == len(self._requests)
        if single and places.size > rows:
            best = np.argpartition(score, places.size - rows)[-rows:]
            places, score = places[best], score[best]
        ordered: list[int] = places[np.argsort(-score, kind="stable")].tolist()
        if single:
            return ordered
        return self._select_fitting(ordered, rows)

    def _select_fitting(self, places: list[int], rows: int) -> list[int]:
        """Return the places, in order, whose requests fit into `rows` rows together."""
        selected = []
        for place, more in zip(places, self._rows[places].tolist(), strict=True):
            if more <= rows:
                selected.append(place)
                rows -= more
            if not rows:
                break
        return selected

    def check(self) -> None:
        assert [self._places[key] for key, *_ in self._requests] == list(range(len(self._places)))
        assert self.rows == sum(rows for *_, rows in self._requests)
        for place, (_, group, deadline_ns, rows) in enumerate(self._requests):
            assert (self._groups[place], self._rows[place]) == (group, rows)
            assert self._due_ns[place] == deadline_ns - self._base_ns
