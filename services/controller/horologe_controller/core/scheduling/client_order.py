"""Order between the clients of a queue, while not all of its requests can be in time.

A queue orders requests by deadline, not by client. So a client that sends more than devices can execute would get as
much more than others as it sends. Therefore each request has a turn, as in start-time fair queueing (Goyal, Vin and
Cheng, SIGCOMM 1996, section 2): the rows of its client before it, counted from the turn of what starts now. A client
without backlog has an earlier turn than each client with one. While the queue loses requests,

- a client whose turn is earlier than that of a queued request takes its place, and the queued request is refused;
- a batch takes the earliest turns among twice as many requests, those with the earliest deadlines.

Nothing is held back: a batch has as many requests as the policy has chosen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.core.indexed_heap import IndexedHeap
from horologe_controller.core.scheduling.strategy import Strategy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from horologe_controller.core.requests.request import Request
    from horologe_controller.core.runtime_distributions import RuntimeDistributions
    from horologe_controller.core.scheduling.queues import ModelQueue

    KindOf = Callable[[Request], object]
    """Requests of equal kinds cost as much: one may take the place of another in a batch."""

CHOICE = 2
"""A batch is chosen from this many times as many requests, those with the earliest deadlines: all others can wait. With
more, requests of small clients would overtake so many of others that these would be late, and batches smaller."""
DISPLACEABLE = 32
"""Requests with the last deadlines, of which one may be refused for an arrival. It bounds the time of an arrival."""


class ClientOrder:
    """Turns of the requests of one queue: `Request.turn`, in rows."""

    __slots__ = ("_by_turn", "_most_clients", "_next", "_present")

    def __init__(self, best_effort: bool) -> None:
        self._present = 0
        """Latest turn of a request that has started: the virtual time."""
        self._next: dict[str, int] = {}
        """Turn of the next request of each client, unless the present is later."""
        self._most_clients = 1
        """Clients without a request are forgotten when there are more: their number has doubled."""
        self._by_turn: IndexedHeap[Request, int] | None = IndexedHeap() if best_effort else None
        """All requests of a best-effort queue by turn: deadlines do not matter for them."""

    def add(self, arrivals: Iterable[Request], queued: Iterable[Request]) -> None:
        """Give each arrival a turn. `queued`: requests of the queue, with or without the arrivals."""
        turns, present, by_turn = self._next, self._present, self._by_turn
        for request in arrivals:
            client = request.client
            turn = turns.get(client, present)
            request.turn = turn = max(turn, present)
            turns[client] = turn + request.rows
            if by_turn is not None:
                by_turn.push(request, turn)
        if len(turns) > self._most_clients:
            clients = dict.fromkeys([request.client for requests in (queued, arrivals) for request in requests])
            self._next = {client: turns[client] for client in clients if client in turns}
            self._most_clients = 2 * len(self._next) + 1

    def start(self, requests: Iterable[Request]) -> None:
        """Remove requests that start, and let the virtual time pass."""
        for request in requests:
            if request.turn > self._present:
                self._present = request.turn
            if self._by_turn is not None:
                self._by_turn.remove(request)

    def withdraw(self, requests: Iterable[Request]) -> None:
        """Remove requests that do not start. They do not count for their clients."""
        for request in requests:
            if request.client in self._next:
                self._next[request.client] -= request.rows
            if self._by_turn is not None:
                self._by_turn.remove(request)

    def choose_places(self, queue: ModelQueue, places: Sequence[int], kind_of: KindOf) -> Sequence[int]:
        """Return places of as many requests of each kind, with the earliest turns, and deadlines no earlier."""
        if len(places) == len(queue):
            return places
        first_ns, wanted = queue[places[0]].deadline_ns, [kind_of(queue[place]) for place in places]
        chosen = []
        for request in self._earliest_turns(queue, places):
            if request.deadline_ns >= first_ns and (kind := kind_of(request)) in wanted:
                wanted.remove(kind)
                chosen.append(request)
                if not wanted:
                    break
        return sorted(queue.place_of(request) for request in chosen)

    def _earliest_turns(self, queue: ModelQueue, places: Sequence[int]) -> Sequence[Request]:
        """Return the requests to choose from, by turn: those at `places`, and others that may go before them.

        With deadlines, these are the next ones by deadline. Best-effort requests are those of all the queue.
        """
        proposed = [queue[place] for place in places]
        if (by_turn := self._by_turn) is None:
            end = min(len(queue), places[0] + CHOICE * len(places))
            others = [queue[place] for place in range(places[0], end)]
        else:
            others = [by_turn.pop()[1] for _ in range(min(len(by_turn), CHOICE * len(places)))]
            for request in others:
                by_turn.push(request, request.turn)
        return sorted(dict.fromkeys(others + proposed), key=_turn)

    def find_displaced(self, queue: ModelQueue, arrival: Request) -> list[Request]:
        """Return queued requests to refuse for an arrival of another client: later turns, as many rows; or none."""
        turn = max(self._next.get(arrival.client, 0), self._present)
        last = [queue[place] for place in range(max(0, len(queue) - DISPLACEABLE), len(queue))]
        others = [request for request in last if request.turn > turn and request.client != arrival.client]
        later = sorted(others, key=_turn, reverse=True)
        rows, displaced = 0, []
        for request in later:
            displaced.append(request)
            rows += request.rows
            if rows >= arrival.rows:
                return displaced
        return []

    def check(self, queue: ModelQueue) -> None:
        assert self._by_turn is None or set(self._by_turn) == set(queue)
        assert all(request.client in self._next or request.turn <= self._present for request in queue)


def share_batch(order: ClientOrder, strategy: Strategy, distributions: RuntimeDistributions | None) -> Strategy:
    """Return the batch with requests of the clients whose turn it is.

    `distributions`: those of a dynamic model, whose requests cost as much only if they are of the same kind.
    """
    queue = strategy.queue

    def kind_of(request: Request) -> object:
        if distributions is None:
            return request.rows
        return request.rows, distributions.kind_of(request.application, request.length)

    places = order.choose_places(queue, strategy.places, kind_of)
    if places == list(strategy.places):
        return strategy
    latest_ns = strategy.latest_ns
    if latest_ns is not None:
        latest_ns += min(0, queue[places[-1]].deadline_ns - queue[strategy.places[-1]].deadline_ns)
    return Strategy(
        strategy.rank, queue, strategy.size, tuple(places), strategy.expected_ns, latest_ns, strategy.in_time
    )


def _turn(request: Request) -> int:
    return request.turn
