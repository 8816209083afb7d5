"""Batch choice for a model with known distributions of execution times: the highest expected value per expected time.

The value of a batch is the sum over its requests of P(it ends by its deadline) * urgency of its kind. Its cost is the
time that it is expected to take. Example: two requests of 2 ms that are certain to be in time are worth more than the
same two with one of 20 ms, since the long row would make the whole batch take 40 ms more.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence  # compiled named tuples evaluate their annotations
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from horologe_controller.core.runtime_distributions import HOPELESS_QUANTILE

if TYPE_CHECKING:
    from horologe_controller.core.runtime_distributions import LongestRow, RuntimeDistributions
    from horologe_controller.core.scheduling.queues import ModelQueue
    from horologe_controller.core.scheduling.strategy import Rank

MAX_CANDIDATES = 256
"""Requests of a dynamic queue to choose from, those with the earliest deadlines. It bounds the time of a decision. The
finish rates with 32 and 1,024 are the same (experiments/results/orloj.md)."""
PATIENCE = 2.0
"""Decay of urgency, in mean solo times: a kind with this much more slack than another counts 1/e of it. Less forgets
the value of a batch, more its deadline (benchmarks/horologe_constants.py, experiments/results/orloj.md)."""


class BatchChoice(NamedTuple):
    """The requests at `places` in the queue, ascending, as a batch of `size`; a high and a low quantile of its time."""

    places: tuple[int, ...]
    size: int
    expected_ns: int
    least_ns: int
    in_time: float
    """Number of its requests that are expected to be in time."""
    until_ns: int
    """For any start up to this time the choice is the same, as all candidates are certain to be in time. 0 if not."""


class BatchCandidate(NamedTuple):
    """A batch of `size` from the requests at `places`, of these `rows` (kinds, ascending)."""

    limit: float
    """Least negative value per ns: that of all requests in time, if the longest row took the mean of its kind."""
    number: int
    """Order of creation. The first of equal candidates is chosen."""
    places: Sequence[int]
    size: int
    rows: tuple[int, ...]


class Eligible(NamedTuple):
    """Requests that may be in a batch whose longest row is of the kind `longest`: `places` and their deadlines."""

    longest: int
    places: Sequence[int]
    deadlines_ns: Sequence[int]
    sizes: Sequence[int]
    """Batch sizes, ascending, that they can fill."""


class QueuedRequests:
    """Requests of a model in order of their deadlines, and what any choice of a batch from them needs."""

    __slots__ = ("bound", "choice", "deadlines_ns", "distributions", "eligible", "kinds", "rows", "sizes")

    def __init__(
        self,
        deadlines_ns: Sequence[int],
        kinds: Sequence[int],
        sizes: Sequence[int],
        distributions: RuntimeDistributions,
        rows: Sequence[int] | None = None,
    ) -> None:
        """Describe n requests by `deadlines_ns` (n,), ascending, `kinds` (n,), and `rows` (n,); None: one row each.

        `sizes`, ascending, can be run.
        """
        self.deadlines_ns = deadlines_ns
        self.kinds = kinds
        self.rows = rows
        self.sizes = sizes
        self.distributions = distributions
        self.bound: tuple[int, Rank | None] = 0, None
        """(`Advance.version`, lower bound of the rank with it)."""
        self.choice: BatchChoice | None = None
        """The last choice. It holds for starts up to its `until_ns`."""
        self.eligible: list[Eligible] = []
        for longest in sorted(set(kinds)):
            places = [place for place, kind in enumerate(kinds) if kind <= longest]
            deadlines = deadlines_ns if len(places) == len(kinds) else [deadlines_ns[place] for place in places]
            self.eligible.append(Eligible(longest, places, deadlines, self._fillable(places)))

    def _fillable(self, places: Sequence[int]) -> Sequence[int]:
        """Return the sizes, ascending, that the requests at `places` can make a batch of.

        A size that they fill at most half is left out, unless it is the smallest, or a request needs it.
        """
        sizes, rows = self.sizes, self.rows
        if rows is None:
            return sizes[: max(1, bisect_left(sizes, 2 * len(places)))]
        counts = [rows[place] for place in places]
        return sizes[: max(1, bisect_left(sizes, 2 * sum(counts)), bisect_left(sizes, max(counts)) + 1)]

    def pack_rows(self, places: Sequence[int], first: int, size: int) -> Sequence[int]:
        """Return those of `places`, from index `first` on, that fit into a batch of `size`; none if it is half empty.

        It may be half empty if it is the smallest size, or if no smaller one holds its largest request.
        """
        rows = self.rows
        if rows is None:
            count = len(places) - first
            return places[first : first + size] if 2 * count > size or (count and size == self.sizes[0]) else ()
        chosen, filled, most = _first_fitting(places[first:], rows, size)
        needed = bool(chosen) and self.sizes[bisect_left(self.sizes, most)] == size
        return chosen if 2 * filled > size or needed else ()

    def kinds_of_rows(self, places: Sequence[int]) -> tuple[int, ...]:
        """Return the kind of each row of the requests at `places`, ascending."""
        kinds, rows = self.kinds, self.rows
        if rows is None:
            return tuple(sorted([kinds[place] for place in places]))
        return tuple(sorted([kinds[place] for place in places for _ in range(rows[place])]))

    def best_choice(self, start_ns: int) -> BatchChoice | None:
        """Return the best batch for a start."""
        choice = self.choice
        if choice is None or start_ns > choice.until_ns:
            choice = self.choice = choose_batch(start_ns, self)
        return choice

    def fastest_batches(self) -> list[tuple[int, float]]:
        """Return (first deadline, requests per ns) of ideal batches, one for each queued kind.

        For any start, a batch whose longest request is of the kind has no earlier deadline and serves no more per ns.
        """
        most_per_ns = self.distributions.most_per_ns
        return [
            (deadlines_ns[0], max([most_per_ns(longest, min(size, len(places)), size) for size in sizes]))
            for longest, places, deadlines_ns, sizes in self.eligible
        ]


def choose_batch(start_ns: int, queued: QueuedRequests) -> BatchChoice | None:
    """Return the best batch that could start at `start_ns`; None if no request can be in time."""
    distributions = queued.distributions
    begin_ns = start_ns + distributions.base_ns
    if not (batches := _in_time(begin_ns, queued) or _latest(queued)):
        return None
    urgency = _urgency(begin_ns, queued, batches)
    best: tuple[float, int, BatchCandidate, LongestRow] | None = None
    for candidate in _candidates(queued, batches, urgency):
        if best is not None and candidate.limit > best[0]:
            break
        row = distributions.longest_row(candidate.rows)
        value = _value(begin_ns, queued, candidate, row, urgency)
        scored = -value, candidate.number, candidate, row
        if value > 0.0 and (best is None or scored < best):
            best = scored
    if best is None:
        return None
    _, _, chosen, row = best
    base_ns, scale = distributions.base_ns, distributions.scale(chosen.size)
    expected_ns, least_ns = int(base_ns + scale * row.high_ns), int(base_ns + scale * row.low_ns)
    longest, _, deadlines_ns, sizes = queued.eligible[-1]
    until_ns = int(deadlines_ns[0] - base_ns - distributions.scale(sizes[-1]) * distributions.most_ns[longest])
    if until_ns < start_ns:
        until_ns = 0
    in_time = sum(_chances(begin_ns, queued, chosen, row), 0.0)
    if in_time < HOPELESS_QUANTILE:
        return None
    return BatchChoice(tuple(chosen.places), chosen.size, expected_ns, least_ns, in_time, until_ns)


def _first_fitting(places: Sequence[int], rows: Sequence[int], size: int) -> tuple[list[int], int, int]:
    """Return the first of `places` that fit into `size` rows together, their rows, and the most rows of one."""
    chosen: list[int] = []
    filled = most = 0
    for place in places:
        count = rows[place]
        if filled + count <= size:
            chosen.append(place)
            filled += count
            most = max(most, count)
            if filled == size:
                break
    return chosen, filled, most


def _in_time(begin_ns: int, queued: QueuedRequests) -> list[tuple[Sequence[int], int]]:
    """Return (places, size) of the candidates: by queued kind and size, the most urgent requests that are in time.

    In time means: if the longest row takes its median. With 0.9, ORLOJ's rows lose 0.004. A more hopeful
    quantile gains nothing.

    A candidate holds only requests no longer than its kind. A size is left out if a smaller one holds them all.
    `begin_ns`: when the part of the batch ends that does not depend on its rows.
    """
    batches: list[tuple[Sequence[int], int]] = []
    for longest, places, deadlines_ns, sizes in queued.eligible:
        for size in sizes:
            first = bisect_left(deadlines_ns, begin_ns + queued.distributions.needed_ns(longest, size))
            if chosen := queued.pack_rows(places, first, size):
                batches.append((chosen, size))
    return batches


def _latest(queued: QueuedRequests) -> list[tuple[Sequence[int], int]]:
    """Return (places, size) of the candidates where no request is in time by the median: those with the most time left.

    An idle device tries them: that costs less than to refuse what may be in time (experiments/results/orloj.md).
    """
    return [
        (chosen, size)
        for _, places, _, sizes in queued.eligible
        for size in sizes
        if (chosen := queued.pack_rows(places, max(0, len(places) - size), size))
    ]


def _urgency(begin_ns: int, queued: QueuedRequests, batches: Sequence[tuple[Sequence[int], int]]) -> dict[int, float]:
    """Return the weight of each kind in a batch: it decays with the slack of the kind's most urgent request there.

    Within a kind all requests weigh the same. Batches take them in the order of deadlines already, and to favour the
    most urgent ones would favour those that may fail.
    """
    if len(queued.eligible) == 1:
        return {queued.kinds[0]: 1.0}
    kinds, deadlines_ns, distributions = queued.kinds, queued.deadlines_ns, queued.distributions
    row_mean_ns = distributions.row_mean_ns
    slacks_ns: dict[int, float] = {}
    for place in dict.fromkeys(chain.from_iterable([places for places, _ in batches])):
        kind = kinds[place]
        slack_ns = max(0.0, deadlines_ns[place] - begin_ns - row_mean_ns[kind])
        if slack_ns < slacks_ns.get(kind, math.inf):
            slacks_ns[kind] = slack_ns
    least_ns = min(slacks_ns.values())  # only differences count, and exp of large slacks would underflow
    patience_ns = PATIENCE * distributions.mean_ns
    return {kind: math.exp((least_ns - slack_ns) / patience_ns) for kind, slack_ns in slacks_ns.items()}


def _candidates(
    queued: QueuedRequests, batches: Sequence[tuple[Sequence[int], int]], urgency: dict[int, float]
) -> list[BatchCandidate]:
    """Return the candidates, the highest limit first."""
    kinds, distributions = queued.kinds, queued.distributions
    base_ns, row_mean_ns = distributions.base_ns, distributions.row_mean_ns
    candidates = []
    for number, (places, size) in enumerate(batches):
        rows = queued.kinds_of_rows(places)
        value = sum([urgency[kinds[place]] for place in places], 0.0)
        limit = value / (base_ns + distributions.scale(size) * row_mean_ns[rows[-1]])
        limit *= 1.0 + 1e-9  # above the rounding errors of the value that it limits
        candidates.append(BatchCandidate(-limit, number, places, size, rows))
    candidates.sort()
    return candidates


def _value(
    begin_ns: int, queued: QueuedRequests, candidate: BatchCandidate, row: LongestRow, urgency: dict[int, float]
) -> float:
    """Return the expected value of a candidate per expected time, if its longest row adds `row`."""
    distributions, kinds = queued.distributions, queued.kinds
    chances = _chances(begin_ns, queued, candidate, row)
    value = sum([urgency[kinds[place]] * chance for place, chance in zip(candidate.places, chances, strict=True)], 0.0)
    return value / (distributions.base_ns + distributions.scale(candidate.size) * row.mean_ns)


def _chances(begin_ns: int, queued: QueuedRequests, candidate: BatchCandidate, row: LongestRow) -> list[float]:
    """Return the probability of each request of a candidate to be in time."""
    deadlines_ns, places = queued.deadlines_ns, candidate.places
    scale = queued.distributions.scale(candidate.size)
    if deadlines_ns[places[0]] >= begin_ns + scale * queued.distributions.most_ns[candidate.rows[-1]]:
        return [1.0] * len(places)
    return [row.part_within((deadlines_ns[place] - begin_ns) / scale) for place in places]


def queued_requests(queue: ModelQueue, distributions: RuntimeDistributions) -> QueuedRequests:
    """Return the first requests of a dynamic queue. The result is kept until the queue's requests change."""
    if not isinstance(queue.derived, dict):
        queue.derived = {}
    derived = queue.derived.get(distributions)
    if derived is None:
        requests = list(islice(queue, MAX_CANDIDATES))
        derived = queue.derived[distributions] = QueuedRequests(
            [request.deadline_ns for request in requests],
            [distributions.kind_of(request.application, request.length) for request in requests],
            queue.spec.batch_sizes,
            distributions,
            None if queue.rows == len(queue) else [request.rows for request in requests],
        )
    return derived
