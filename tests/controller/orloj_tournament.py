"""ORLOJ's queue on trees instead of arrays: what `ScoreQueue` is compared with, in what it chooses and what it costs.

A request is the line alpha u + beta over u = e^(bt), the dual of the point (alpha, beta) of the paper's hull. The upper
envelope of the lines is kept by a kinetic tournament: a binary tree whose nodes know which line below them is highest,
and until when. Since u only grows, changes cost O(log^2 n) amortised, as with the hull of Overmars and van Leeuwen.
Milestones, drops and the earliest deadline of each size are heaps.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horologe_controller.schedulers.orloj.score_queue import Steps
    from horologe_controller.schedulers.orloj.scores import Scores

NOBODY = -1
FLOOR = (0.0, -math.inf)


class Tournament:
    """Lines by place, and which is highest at t."""

    def __init__(self, b_per_ns: float, room: int = 64) -> None:
        self._b = b_per_ns
        self._make(room)

    def _make(self, room: int) -> None:
        self.room = room
        self._lines = [FLOOR] * room
        self._best = [NOBODY] * room + list(range(room))
        self._until = [math.inf] * (2 * room)

    def put(self, place: int, alpha: float, beta: float, t: float) -> None:
        if place >= self.room:
            lines = self._lines
            self._make(2 * self.room)
            self._lines[: len(lines)] = lines
            for node in range(self.room - 1, 0, -1):
                self._play(node, t, math.exp(self._b * t))
        self._set(place, (alpha, beta), t)

    def drop(self, place: int, t: float) -> None:
        if place < self.room and self._lines[place] is not FLOOR:
            self._set(place, FLOOR, t)

    def _set(self, place: int, line: tuple[float, float], t: float) -> None:
        self._lines[place] = line
        node, u = (self.room + place) >> 1, math.exp(self._b * t)
        while node:
            self._play(node, t, u)
            node >>= 1

    def top(self, t: float) -> int:
        """Return the place of the highest line, or NOBODY."""
        if self._until[1] <= t:
            self._advance(1, t, math.exp(self._b * t))
        best = self._best[1]
        return best if best >= 0 and self._lines[best] is not FLOOR else NOBODY

    def _advance(self, node: int, t: float, u: float) -> None:
        for child in (2 * node, 2 * node + 1):
            if self._until[child] <= t:
                self._advance(child, t, u)
        self._play(node, t, u)

    def _play(self, node: int, t: float, u: float) -> None:
        """Which of its children's lines is higher, and until when that and theirs are so."""
        left, right = 2 * node, 2 * node + 1
        best, other = self._best[left], self._best[right]
        until = min(self._until[left], self._until[right])
        if best < 0 or other < 0:
            self._best[node], self._until[node] = max(best, other), until
            return
        (alpha, beta), (rival, shift) = self._lines[best], self._lines[other]
        if rival * u + shift > alpha * u + beta:
            best, alpha, beta, rival, shift = other, rival, shift, alpha, beta
        self._best[node] = best
        if rival > alpha and shift > -math.inf:
            crossing = math.log((beta - shift) / (rival - alpha)) / self._b if beta > shift else math.inf
            until = min(until, max(crossing, math.nextafter(t, math.inf)))
        self._until[node] = until


class TournamentQueue:
    """The interface of `ScoreQueue`; times must not go back."""

    def __init__(self, scores: Scores, *, earliest: bool = True) -> None:
        self.scores, self.earliest = scores, earliest
        self._trees = [Tournament(scores.b_per_ns) for _ in scores.sizes]
        self._cells = [
            (cells.end_ns.tolist(), cells.start_ns.tolist(), cells.slope.tolist(), cells.level.tolist())
            for cells in (scores.cells(place) for place in range(len(scores.sizes)))
        ]
        self._expected_ns = scores.expected_ns.tolist()
        self._requests: dict[int, tuple[int, int, Steps, int, int]] = {}
        """Key -> (place, group, steps from the base, rows, viable sizes: the first so many)."""
        self._key_at: dict[int, int] = {}
        self._free: list[int] = []
        self._deadlines: list[list[tuple[int, int]]] = [[] for _ in scores.sizes]
        self._drops: list[tuple[float, int, int]] = []
        self._milestones: list[tuple[float, int, int, int]] = []
        self._rows = [0] * len(scores.sizes)
        self._padded = [0] * len(scores.sizes)
        """By size, viable requests that no smaller one holds."""
        self._base_ns: int | None = None
        self._late: list[int] = []
        self._t = 0.0
        self._entries = 0

    def __len__(self) -> int:
        return len(self._requests)

    def insert(self, key: int, group: int, steps: Steps, rows: int = 1) -> None:
        if self._base_ns is None:
            self._base_ns = steps[0][0]
        steps = tuple((deadline_ns - self._base_ns, cost) for deadline_ns, cost in steps)
        place = self._free.pop() if self._free else len(self._requests)
        sizes = self.scores.sizes
        first = next(number for number, size in enumerate(sizes) if size >= rows)
        self._requests[key] = place, group, steps, rows, len(sizes)
        self._key_at[place] = key
        last_ns = steps[-1][0]
        heapq.heappush(self._drops, (last_ns - self._expected_ns[-1][group], len(sizes) - 1, key))
        self._padded[first] += 1
        for size in range(first, len(sizes)):
            self._rows[size] += rows
            heapq.heappush(self._deadlines[size], (last_ns, key))
            self._entries += 1
            heapq.heappush(self._milestones, (-math.inf, self._entries, size, key))

    def _score(self, key: int, size: int) -> None:
        """alpha and beta of a request, and when they are others."""
        place, group, steps, _, _ = self._requests[key]
        end_ns, start_ns, slopes, levels = self._cells[size]
        slope, level = slopes[group], levels[group]
        alpha = beta = before = 0.0
        until = math.inf
        for due_ns, cost in steps:
            at = bisect_left(end_ns, due_ns - self._t)
            alpha += (cost - before) * slope[at] * math.exp(-self.scores.b_per_ns * (due_ns - start_ns[at]))
            beta += (cost - before) * level[at]
            until = min(until, due_ns - start_ns[at])
            before = cost
        self._trees[size].put(place, alpha, beta, self._t)
        if until < math.inf:
            self._entries += 1
            heapq.heappush(self._milestones, (until, self._entries, size, key))

    def remove(self, key: int) -> None:
        place, _, _, rows, viable = self._requests.pop(key)
        for size in range(viable):
            self._unviable(size, place, rows)
        del self._key_at[place]
        self._free.append(place)

    def timed_out_keys(self, t_ns: int) -> list[int]:
        self._advance(t_ns)
        self._late = [key for key in self._late if key in self._requests]
        return list(self._late)

    def _unviable(self, size: int, place: int, rows: int) -> None:
        sizes = self.scores.sizes
        if sizes[size] >= rows:
            self._rows[size] -= rows
            self._padded[size] -= not size or sizes[size - 1] < rows
            self._trees[size].drop(place, self._t)

    def _advance(self, t_ns: int) -> None:
        """Drops, then milestones, up to now."""
        if self._base_ns is None:
            self._base_ns = t_ns
        self._t = t = float(t_ns - self._base_ns)
        sizes = self.scores.sizes
        while self._drops and self._drops[0][0] < t:
            _, size, key = heapq.heappop(self._drops)
            if key not in self._requests:
                continue
            place, group, steps, rows, _ = self._requests[key]
            self._requests[key] = place, group, steps, rows, size
            self._unviable(size, place, rows)
            if size and sizes[size - 1] >= rows:
                heapq.heappush(self._drops, (steps[-1][0] - self._expected_ns[size - 1][group], size - 1, key))
            else:
                self._late.append(key)
        while self._milestones and self._milestones[0][0] <= t:
            _, _, size, key = heapq.heappop(self._milestones)
            if key in self._requests and self._requests[key][4] > size:
                self._score(key, size)

    def _deadline(self, size: int) -> float:
        heap = self._deadlines[size]
        while heap and self._requests.get(heap[0][1], (0, 0, 0, 0, 0))[4] <= size:
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    def choose_batch(self, t_ns: int) -> tuple[int, list[int]] | None:
        self._advance(t_ns)
        sizes = self.scores.sizes
        full = [place for place, size in enumerate(sizes) if self._rows[place] >= size or self._padded[place]]
        if not full:
            return None
        sign = -1 if self.earliest else 1
        size = max(full, key=lambda place: (sign * self._deadline(place), place))
        taken, left, tree = [], sizes[size], self._trees[size]
        passed = []
        while left and (place := tree.top(self._t)) >= 0:
            key = self._key_at[place]
            rows = self._requests[key][3]
            if rows <= left:
                taken.append(key)
                left -= rows
            passed.append((place, tree._lines[place]))
            tree.drop(place, self._t)
        for place, line in passed:
            tree.put(place, *line, self._t)
        return sizes[size], taken
