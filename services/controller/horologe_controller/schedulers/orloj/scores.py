"""ORLOJ's score of a request in a batch (eq. 2), as the two numbers that a queue keeps of it: alpha e^(bt) + beta."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from horologe_common.distribution import BINS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from horologe_common.distribution import Distribution, Floats

    Ints = NDArray[np.intp]

B_PER_MS = 1e-4
"""Of the anticipated delay, which is exponential (section 4.1); it hardly matters (fig. 13)."""
NODES = 4
"""At which the integral over a bin is taken: exact up to batches of 7 where all edges are those of the bins."""


class Scores:
    """By batch size and group, the groups being requests with one distribution of the time that they take alone.

    The latency L of a batch with a request in it is that of this request and size - 1 others, which may be any of the
    model's: what they will be is not known when the score is (section 4.3). E[L] in eq. 2 is over any of them. All of
    this is found once for what is known of a model: in 3 ms for 64 groups and five sizes.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        groups: Sequence[Distribution],
        others: Distribution,
        base_ns: float,
        b_per_ms: float = B_PER_MS,
    ) -> None:
        """`sizes` ascend; `others`: of any request of the model; `base_ns` is c0 of eq. 3."""
        self.sizes = tuple(sizes)
        self.b_per_ns = b_per_ms / 1e6
        self._args = self.sizes, tuple(groups), others, base_ns, b_per_ms
        rows, any_row = [group.excess_over(base_ns) for group in groups], others.excess_over(base_ns)
        edges = _edges(rows, any_row)
        nodes, weights = np.polynomial.legendre.leggauss(NODES)
        half = np.diff(edges)[:, None] / 2
        points, widths = (edges[:-1, None] + half * (1 + nodes)).ravel(), (half * weights).ravel()
        inside, any_inside = np.array([row.cdf(points) for row in (*rows, any_row)]), any_row.cdf(points)
        below, any_below = np.array([row.cdf(edges) for row in rows]), any_row.cdf(edges)
        mean_ns = np.array(
            [base_ns + size * (edges[-1] - inside @ (widths * any_inside ** (size - 1))) for size in self.sizes]
        )
        self.expected_ns: Floats = np.maximum.accumulate(mean_ns[:, :-1])
        """(sizes, groups): what a batch with one of the group takes on average; in a larger one never less."""
        self._cells = [
            Cells(base_ns + size * edges, below * any_below ** (size - 1), self.b_per_ns, batch_ns)
            for size, batch_ns in zip(self.sizes, mean_ns[:, -1].tolist(), strict=True)
        ]

    def __reduce__(self) -> tuple[Any, ...]:
        return Scores, self._args

    def cells(self, place: int) -> Cells:
        """Of the size at this place."""
        return self._cells[place]

    def parts(
        self, place: int, groups: Ints, left_ns: Floats, deadline_ns: Floats, costs: Floats
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """(alpha, beta, from, until): the score is alpha e^(bt) + beta from one time to before the other, in ns.

        `place` of the size in `sizes`; `groups` (n,); the rest (n, steps): what is left until each deadline, the
        deadlines counted from the base time of t, and what missing each costs. The score of a cost function with
        several steps is the sum of those of its steps (appendix B), so alpha and beta are sums, too.
        """
        cells = self._cells[place]
        at = np.searchsorted(cells.end_ns, left_ns)
        start_ns, group = cells.start_ns[at], groups[:, None]
        alpha = costs * cells.slope[group, at] * np.exp(-self.b_per_ns * (deadline_ns - start_ns))
        beta = costs * cells.level[group, at]
        since_ns, until_ns = deadline_ns - cells.end_ns[at], deadline_ns - start_ns
        return alpha.sum(axis=1), beta.sum(axis=1), since_ns.max(axis=1), until_ns.min(axis=1)


class Cells:
    """Where eq. 2 has one form: by what is left, D - t, the stretches between the edges of the histogram of L.

    With G_j the sum of h (e^(b l2) - e^(b l1)) over the bins below edge j, times e^(-b l_j), and K = 1 / (E[L] b):
    beyond the last edge the score is K G e^(-b(D - t - l)); within bin j it is K (G_j - h_j) e^(-b(D - t - l_j)) +
    K h_j; before the first it is 0. Exponents are thus differences, and do not overflow. h is a density: eq. 2 is an
    integral over the bin, though the paper calls h the bin's frequency.
    """

    def __init__(self, edges_ns: Floats, below: Floats, b_per_ns: float, mean_ns: float) -> None:
        """`edges_ns` (n + 1,); `below` (groups, n + 1): CDFs of L there; `mean_ns`: E[L]."""
        widths_ns = np.diff(edges_ns)
        heights = np.maximum(0.0, np.diff(below)) / widths_ns
        kept, gained = np.exp(-b_per_ns * widths_ns), -np.expm1(-b_per_ns * widths_ns) * heights
        sums = np.zeros_like(below)
        for place in range(widths_ns.size):
            sums[:, place + 1] = sums[:, place] * kept[place] + gained[:, place]
        nothing, scale = np.zeros((len(below), 1)), 1 / (mean_ns * b_per_ns)
        self.slope: Floats = np.hstack((nothing, sums[:, :-1] - heights, sums[:, -1:])) * scale
        """(groups, n + 2): before the first edge, the bins, beyond the last."""
        self.level: Floats = np.hstack((nothing, heights, nothing)) * scale
        self.start_ns: Floats = np.append(-np.inf, edges_ns)
        self.end_ns: Floats = np.append(edges_ns, np.inf)


def _edges(rows: Sequence[Distribution], any_row: Distribution) -> Floats:
    """Of the bins, the same for all groups: those of the mixture, as far as any group goes."""
    edges = any_row.coarsen(BINS).edges_ns
    first, last = min(row.edges_ns[0] for row in rows), max(row.edges_ns[-1] for row in rows)
    before, after = [first] if first < edges[0] else [], [last] if last > edges[-1] else []
    found: Floats = np.concatenate((before, edges, after))
    return found
