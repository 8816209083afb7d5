"""The search for the cheapest plan: what costs least is tried first, and gets a device more if it is too slow.

It starts from what each stage needs by itself, for each choice of hardware. What costs less cannot meet the objective,
so the first that meets it is the plan.
"""

from __future__ import annotations

import heapq
from math import inf
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from horologe_planning.hardware import PRICE_ROUNDING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

RUNS_LIMIT = 8000
"""Runs of the estimator for a search."""

State = TypeVar("State")


class SearchSpace(Protocol[State]):
    """What can be planned: devices, and what runs on them."""

    @property
    def runs(self) -> int:
        """Runs of the estimator so far."""

    def starts(self) -> Iterator[State]:
        """Yield what is tried first, in ascending order of cost."""

    def price(self, state: State) -> float:
        """Return the dollars per hour."""

    def reached_slo_ns(self, state: State) -> float:
        """Return the shortest SLO that is met."""

    def is_feasible(self, state: State) -> bool:
        """Return whether the objective is met."""

    def improve(self, state: State) -> State:
        """Return the state after changes that keep its devices and shorten the SLO that is met."""

    def additions(self, state: State) -> Iterable[State]:
        """Return states with a device more that may meet a shorter SLO."""

    def devices(self, state: State) -> Hashable:
        """Return what `improve` keeps. Of all additions with the same devices, the first is tried."""


class SearchResult(NamedTuple, Generic[State]):
    """Result of a search."""

    cheapest: State | None
    """None if no feasible state was found."""
    following: State | None = None
    """What is tried next, if the search ended at its limit of runs."""


def search_cheapest(
    space: SearchSpace[State], runs_limit: int = RUNS_LIMIT, cost_limit: float = inf
) -> SearchResult[State]:
    """Return the cheapest feasible state that was found and costs less than `cost_limit` dollars per hour."""
    frontier, last_run = Frontier(space, cost_limit), space.runs + runs_limit
    while (state := frontier.pop()) is not None:
        if space.runs >= last_run:
            return SearchResult(None, state)
        state = space.improve(state)
        if space.is_feasible(state):
            return SearchResult(state)
        for wider in space.additions(state):
            frontier.push(wider)
    return SearchResult(None)


def take_best_changes(
    state: State,
    kinds: Sequence[Callable[[State], Iterable[State]]],
    reached_slo_ns: Callable[[State], float],
    gain: float = 1.0,
    is_enough: Callable[[float], bool] = lambda reached_ns: False,
) -> State:
    """Return the state after changes that each shorten the reached SLO to less than `gain` times what it was.

    Each step takes the best change of the first kind that brings one. It ends without one, or if the SLO is enough.
    """
    while not is_enough(reached_slo_ns(state)):
        for changes in kinds:
            best = min(changes(state), key=reached_slo_ns, default=state)
            if reached_slo_ns(best) < gain * reached_slo_ns(state):
                state = best
                break
        else:
            break
    return state


class Frontier(Generic[State]):
    """States to try, the cheapest first, and of equal ones that with the shortest reached SLO."""

    def __init__(self, space: SearchSpace[State], cost_limit: float) -> None:
        """`cost_limit`: dollars per hour that a state must be below."""
        self._space, self._cost_limit = space, cost_limit
        self._starts = space.starts()
        self._start = next(self._starts, None)
        self._heap: list[tuple[float, float, int, State]] = []
        self._seen: set[Hashable] = set()
        self._pushed = 0

    def push(self, addition: State) -> None:
        """Add a state, unless it costs too much or its devices are known."""
        if (devices := self._space.devices(addition)) not in self._seen:
            self._seen.add(devices)
            self._add(addition)

    def pop(self) -> State | None:
        """Remove and return the next state. None: there is none."""
        while self._start is not None and not (self._heap and self._heap[0][0] < self._price(self._start)):
            self._add(self._start)
            self._start = next(self._starts, None)
        return heapq.heappop(self._heap)[-1] if self._heap else None

    def _add(self, state: State) -> None:
        if self._price(state) < self._cost_limit - PRICE_ROUNDING:
            self._pushed += 1
            entry = (self._price(state), self._space.reached_slo_ns(state), self._pushed, state)
            heapq.heappush(self._heap, entry)

    def _price(self, state: State) -> float:
        """Return the price without the rounding of its sum, which would decide between equal ones."""
        return round(self._space.price(state), 9)
