"""ORLOJ's score of a request in a batch (eq. 2), as the two numbers that a queue keeps of it: alpha e^(bt) + beta."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from horologe_common.distribution import Distribution, batch_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from horologe_common.distribution import Floats

    Ints = NDArray[np.int64]

B_PER_MS = 1e-4
"""Of the anticipated delay, which is exponential (section 4.1); it hardly matters (fig. 13)."""


class Scores:
    """By batch size and group, the groups being requests with one distribution of the time that they take alone.

    The latency L of a batch with a request in it is that of this request and size - 1 others, which may be any of the
    model's: what they will be is not known when the score is (section 4.3). E[L] in eq. 2 is over any of them. All of
    this is found once, when a group is first asked for: some ms, where a score is less than a microsecond.
    """

    def __init__(self, sizes: Sequence[int], others: Distribution, base_ns: float, b_per_ms: float = B_PER_MS) -> None:
        """`sizes` ascend; `others`: of any request of the model; `base_ns` is c0 of eq. 3."""
        self.sizes = tuple(sizes)
        self.b_per_ns = b_per_ms / 1e6
        self.expected_ns: Floats = np.zeros((len(self.sizes), 0))
        """(sizes, groups): what a batch with one of the group takes on average; in a larger one never less."""
        self._args = self.sizes, others, base_ns, b_per_ms
        self._groups: dict[Distribution, int] = {}
        self._others = others.coarse()
        self._base_ns = base_ns
        batch_ns = [self._others.batch(base_ns, size).mean_ns for size in self.sizes]
        self._cells = [_Cells(self.b_per_ns, mean_ns) for mean_ns in batch_ns]

    def __getstate__(self) -> dict[str, Any]:
        """Arrays do not travel; they follow from this."""
        return {"args": self._args, "groups": list(self._groups)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Scores.__init__(self, *state["args"])
        for solo in state["groups"]:
            self.group(solo)

    def group(self, solo: Distribution) -> int:
        """The number of the requests that take `solo` alone."""
        found = self._groups.get(solo)
        if found is None:
            found = self._groups[solo] = len(self._groups)
            latencies = [batch_of([solo] + [self._others] * (size - 1), self._base_ns) for size in self.sizes]
            for cells, latency in zip(self._cells, latencies, strict=True):
                cells.add(latency.coarse())
            mean_ns = np.maximum.accumulate([latency.mean_ns for latency in latencies])
            self.expected_ns = np.column_stack((self.expected_ns, mean_ns))
        return found

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

    def __init__(self, b_per_ns: float, mean_ns: float) -> None:
        self._b_per_ns = b_per_ns
        self._mean_ns = mean_ns
        self._edges_ns: list[Floats] = []
        self.slope: Floats = np.zeros(0)
        self.level: Floats = np.zeros(0)
        self.start_ns: Floats = np.zeros(0)
        self.end_ns: Floats = np.zeros(0)

    def add(self, latency: Distribution) -> None:
        """Another group's L."""
        slope, level = _forms(latency, self._b_per_ns)
        edges_ns = latency.edges_ns
        self._edges_ns.append(edges_ns)
        self.slope = np.append(self.slope, slope / (self._mean_ns * self._b_per_ns))
        self.level = np.append(self.level, level / (self._mean_ns * self._b_per_ns))
        self.start_ns = np.concatenate((self.start_ns, [-np.inf], edges_ns))
        self.end_ns = np.concatenate((self.end_ns, edges_ns, [np.inf]))
        self.least_ns = min(one[0] for one in self._edges_ns) - 1
        self.most_ns = max(one[-1] for one in self._edges_ns) + 1
        self.span_ns = self.most_ns - self.least_ns + 1
        self.keys = np.concatenate([group * self.span_ns + one for group, one in enumerate(self._edges_ns)])

    def find(self, groups: Ints, left_ns: Floats) -> Ints:
        """(n, steps): the cells in which requests of these groups are, (n,), with so much left, (n, steps).

        The edges of all groups are in one array, each group's beyond those of the one before: one search finds all.
        """
        within_ns = np.clip(left_ns, self.least_ns, self.most_ns)
        found: Ints = np.searchsorted(self.keys, within_ns + (groups * self.span_ns)[:, None]) + groups[:, None]
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
