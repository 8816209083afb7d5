"""ORLOJ's score of a request in a batch (eq. 2), as the two numbers alpha and beta of alpha e^(bt) + beta."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from horologe_common.distribution import BINS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from horologe_common.distribution import Distribution, Floats

    Ints = NDArray[np.intp]

NODES = 4
"""Gauss-Legendre nodes per bin: exact up to batches of 7 if all edges are those of the bins."""


class Scores:
    """Scores by batch size and group. A group is all requests with the same distribution of solo times.

    The latency L of a batch is that of the request and size - 1 others. The others may be any requests of the model,
    as they are unknown when the score is computed (section 4.3). E[L] in eq. 2 is over any requests. The tables are
    built once per publication of distributions: 3 ms for 64 groups and five sizes.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        groups: Sequence[Distribution],
        others: Distribution,
        base_ns: float,
        b_per_ms: float,
    ) -> None:
        """Build the tables.

        `sizes` ascend; `others` is the distribution of any request of the model; `base_ns` is c0 of eq. 3.
        `b_per_ms` is the rate b of the anticipated delay, which is exponential (section 4.1). It hardly matters (fig.
        13).
        """
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
        """(sizes, groups): mean time of a batch that holds a request of the group. It never falls with the size."""
        self._cells = [
            Cells(base_ns + size * edges, below * any_below ** (size - 1), self.b_per_ns, batch_ns)
            for size, batch_ns in zip(self.sizes, mean_ns[:, -1].tolist(), strict=True)
        ]

    def __reduce__(self) -> tuple[Any, ...]:
        return Scores, self._args

    def parts(self, place: int, groups: Ints, t_ns: float, due_ns: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Return (alpha, beta, since, until): the score is alpha e^(bt) + beta from `since` to before `until`, in ns.

        `place` is the index of the size; `groups` and `due_ns` (n,). `t_ns` and the deadlines `due_ns` are relative to
        the base time of t.
        """
        cells = self._cells[place]
        at = np.searchsorted(cells.end_ns, due_ns - t_ns)
        start_ns = cells.start_ns[at]
        alpha = cells.slope[groups, at] * np.exp(-self.b_per_ns * (due_ns - start_ns))
        return alpha, cells.level[groups, at], due_ns - cells.end_ns[at], due_ns - start_ns


class Cells:
    """Coefficients of eq. 2 by the time left until the deadline, D - t, between the edges of the histogram of L.

    G_j is the sum of h (e^(b l2) - e^(b l1)) over the bins below edge j, times e^(-b l_j), and K = 1 / (E[L] b).
    Beyond the last edge the score is K G e^(-b(D - t - l)). Within bin j it is
    K (G_j - h_j) e^(-b(D - t - l_j)) + K h_j. Before the first edge it is 0. The exponents are differences, so they do
    not overflow. h is a density, as eq. 2 integrates over the bin, although the paper calls h the bin's frequency.
    """

    def __init__(self, edges_ns: Floats, below: Floats, b_per_ns: float, mean_ns: float) -> None:
        """Build from `edges_ns` (n + 1,), the CDFs of L there, `below` (groups, n + 1), and E[L] in `mean_ns`."""
        widths_ns = np.diff(edges_ns)
        heights = np.maximum(0.0, np.diff(below)) / widths_ns
        kept, gained = np.exp(-b_per_ns * widths_ns), -np.expm1(-b_per_ns * widths_ns) * heights
        sums = np.zeros_like(below)
        for place in range(widths_ns.size):
            sums[:, place + 1] = sums[:, place] * kept[place] + gained[:, place]
        nothing, scale = np.zeros((len(below), 1)), 1 / (mean_ns * b_per_ns)
        self.slope: Floats = np.hstack((nothing, sums[:, :-1] - heights, sums[:, -1:])) * scale
        """(groups, n + 2): before the first edge, in the bins, beyond the last edge."""
        self.level: Floats = np.hstack((nothing, heights, nothing)) * scale
        self.start_ns: Floats = np.append(-np.inf, edges_ns)
        self.end_ns: Floats = np.append(edges_ns, np.inf)


def _edges(rows: Sequence[Distribution], any_row: Distribution) -> Floats:
    """Return common edges of the bins: those of the mixture, extended to the range of all groups."""
    edges = any_row.coarsen(BINS).edges_ns
    first, last = min(row.edges_ns[0] for row in rows), max(row.edges_ns[-1] for row in rows)
    before, after = [first] if first < edges[0] else [], [last] if last > edges[-1] else []
    extended: Floats = np.concatenate((before, edges, after))
    return extended
