"""ORLOJ's score of a request in a batch (eq. 2), as the two numbers that a queue keeps of it: alpha e^(bt) + beta."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from horologe_common.distribution import Distribution, batch_of, mixture

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from horologe_common.distribution import Floats

    Ints = NDArray[np.int64]

B_PER_MS = 1e-4
"""Of the anticipated delay, which is exponential (section 4.1); it hardly matters (fig. 13)."""


class Scores:
    """By batch size and group, the groups being requests with one distribution of the time that they take alone.

    The latency L of a batch with a request in it is that of this request and size - 1 others, drawn from all groups of
    the model: what the others will be is not known when the score is (section 4.3). E[L] in eq. 2 is over all groups.
    All of this is done once per change of a distribution, off the critical path.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        groups: Sequence[Distribution],
        base_ns: float,
        b_per_ms: float = B_PER_MS,
        weights: Sequence[float] | None = None,
    ) -> None:
        """`sizes` ascend; `base_ns` is c0 of eq. 3; `weights`: how much of the traffic each group is."""
        self.sizes = tuple(sizes)
        self.b_per_ns = b_per_ms / 1e6
        self._args = self.sizes, tuple(groups), base_ns, b_per_ms, weights and tuple(weights)
        others = mixture(groups, weights).coarse()
        taken = [[batch_of([group] + [others] * (size - 1), base_ns).coarse() for group in groups] for size in sizes]
        mean_ns = np.array([[latency.mean_ns for latency in row] for row in taken])
        self.expected_ns: Floats = np.maximum.accumulate(mean_ns)
        """(sizes, groups): what a batch with one of the group takes on average; in a larger one never less."""
        self.batch_ns: Floats = np.maximum.accumulate(np.array([others.batch(base_ns, size).mean_ns for size in sizes]))
        """(sizes,): what a batch takes on average."""
        self._cells = [
            _Cells(row, self.b_per_ns, mean_ns) for row, mean_ns in zip(taken, self.batch_ns.tolist(), strict=True)
        ]

    def __reduce__(self) -> tuple[Any, ...]:
        return Scores, self._args

    def parts(
        self, place: int, groups: Ints, left_ns: Floats, deadline_ns: Floats, costs: Floats
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """(alpha, beta, from, until): the score is alpha e^(bt) + beta from one time to before the other, in ns.

        `place` of the size in `sizes`; `groups` (n,); the rest (n, steps): what is left until each deadline, the
        deadlines counted from the base time of t, and what missing each costs. The score of a cost function with
        several steps is the sum of those of its steps (appendix B), so alpha and beta are sums, too.
        """
        cells = self._cells[place]
        at = cells.find(groups, left_ns)
        alpha = costs * cells.slope[at] * np.exp(-self.b_per_ns * (deadline_ns - cells.start_ns[at]))
        beta = costs * cells.level[at]
        since_ns, until_ns = deadline_ns - cells.end_ns[at], deadline_ns - cells.start_ns[at]
        return alpha.sum(axis=1), beta.sum(axis=1), since_ns.max(axis=1), until_ns.min(axis=1)


class _Cells:
    """Where eq. 2 has one form: by what is left, D - t, the stretches between the edges of the histograms of L.

    With G_j the sum of h (e^(b l2) - e^(b l1)) over the bins below edge j, times e^(-b l_j), and K = 1 / (E[L] b):
    beyond the last edge the score is K G e^(-b(D - t - l)); within bin j it is K (G_j - h_j) e^(-b(D - t - l_j)) +
    K h_j; before the first it is 0. Exponents are thus differences, and do not overflow. h is a density: eq. 2 is an
    integral over the bin, though the paper calls h the bin's frequency.
    """

    def __init__(self, latencies: Sequence[Distribution], b_per_ns: float, mean_ns: float) -> None:
        self._least_ns = min(one.edges_ns[0] for one in latencies) - 1
        self._most_ns = max(one.edges_ns[-1] for one in latencies) + 1
        self._span_ns = self._most_ns - self._least_ns + 1
        slopes, levels, edges = [], [], []
        for one in latencies:
            slope, level = _forms(one, b_per_ns)
            slopes.append(slope / (mean_ns * b_per_ns))
            levels.append(level / (mean_ns * b_per_ns))
            edges.append(one.edges_ns)
        self.slope, self.level = np.concatenate(slopes), np.concatenate(levels)
        self.start_ns = np.concatenate([np.append(-np.inf, one) for one in edges])
        self.end_ns = np.concatenate([np.append(one, np.inf) for one in edges])
        self._keys = np.concatenate([group * self._span_ns + one for group, one in enumerate(edges)])

    def find(self, groups: Ints, left_ns: Floats) -> Ints:
        """(n, steps): the cells in which requests of these groups are, (n,), with so much left, (n, steps).

        The edges of all groups are in one array, each group's beyond those of the one before: one search finds all.
        """
        within_ns = np.clip(left_ns, self._least_ns, self._most_ns)
        found: Ints = np.searchsorted(self._keys, within_ns + (groups * self._span_ns)[:, None]) + groups[:, None]
        return found


def _forms(latency: Distribution, b_per_ns: float) -> tuple[Floats, Floats]:
    """(slope, level) of each cell, (bins + 2,), for K = 1."""
    widths_ns = np.diff(latency.edges_ns)
    heights = latency.mass / widths_ns
    decay = np.exp(-b_per_ns * widths_ns)
    gained = -np.expm1(-b_per_ns * widths_ns) * heights
    below = np.zeros(heights.size + 1)
    for place, (kept, more) in enumerate(zip(decay.tolist(), gained.tolist(), strict=True)):
        below[place + 1] = below[place] * kept + more
    slope = np.concatenate(([0.0], below[:-1] - heights, below[-1:]))
    return slope, np.concatenate(([0.0], heights, [0.0]))
