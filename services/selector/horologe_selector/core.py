"""The selector: resolves what a query is for, answers from the cache, else submits it and passes the outputs on.

Query -> cache, or a flight already under way, or Submit; Outputs (from the worker) or Outcome (from the controller)
-> Answer to every frontend that waits for this flight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.core import Gone, Joined, Out, role
from horologe_common.frames import split_rows
from horologe_common.metrics import Stats
from horologe_common.status import Status
from horologe_common.wire import Answer, Cancel, Models, Outcome, Outputs, Query, Release, Submit
from horologe_selector.cache import Cache

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core import Buffer
    from horologe_common.models import ModelSpec
    from horologe_common.wire import Tensor
    from horologe_selector.settings import Settings

    Handler = Callable[[int, str, Any, Sequence[Buffer]], None]


OK = int(Status.OK)


class Waiter(msgspec.Struct):
    """A query of a frontend, with its deadline here."""

    frontend: str
    query: Query
    arrival_ns: int
    deadline_ns: int


class Flight(msgspec.Struct):
    """One Submit under way. The first waiter leads: its inputs are the ones submitted; the others ask the same."""

    id: int
    model: str
    cache_key: bytes
    leader: Waiter
    followers: list[Waiter]


class Selector:
    """Core of the selector."""

    def __init__(self, address: str, settings: Settings) -> None:
        self.address = address
        self.settings = settings
        self.out: list[Out] = []
        self.cache = Cache(settings.cache_bytes)
        self.stats = Stats()
        self._specs: dict[str, ModelSpec] = {}
        self._flights: dict[int, Flight] = {}
        self._by_cache_key: dict[bytes, int] = {}
        self._by_query: dict[tuple[str, int], int] = {}
        self._controller = ""
        self._last_id = 0
        self._handlers: dict[type, Handler] = {
            Query: self._query, Outputs: self._outputs, Outcome: self._outcome, Cancel: self._cancelled,
            Models: self._announced, Joined: self._joined, Gone: self._gone,
        }  # fmt: skip

    def handle(self, now_ns: int, sender: str, message: Any, buffers: Sequence[Buffer]) -> None:
        """One message from a frontend, a worker, the controller or the loop."""
        if handler := self._handlers.get(type(message)):
            handler(now_ns, sender, message, buffers)

    def tick(self, now_ns: int) -> None:
        """Nothing waits for the time here: a frontend cancels what it has answered by itself."""

    def wakeup_ns(self) -> int | None:
        return None

    def _cancelled(self, now_ns: int, frontend: str, message: Cancel, buffers: Sequence[Buffer]) -> None:
        for query_id in message.ids:
            self._abandon(now_ns, frontend, query_id)

    def _announced(self, now_ns: int, controller: str, message: Models, buffers: Sequence[Buffer]) -> None:
        self._specs = {state.spec.key: state.spec for state in message.models}

    def _joined(self, now_ns: int, sender: str, message: Joined, buffers: Sequence[Buffer]) -> None:
        if role(message.address) == "controller":
            self._controller = message.address
            for flight in self._flights.values():
                self._submit(now_ns, flight)

    def _gone(self, now_ns: int, sender: str, message: Gone, buffers: Sequence[Buffer]) -> None:
        if message.address == self._controller:
            self._controller = ""
        elif role(message.address) == "frontend":
            for frontend, query_id in [key for key in self._by_query if key[0] == message.address]:
                self._abandon(now_ns, frontend, query_id)

    def check(self) -> None:
        self.cache.check()
        waiters = [waiter for flight in self._flights.values() for waiter in (flight.leader, *flight.followers)]
        assert sorted(self._by_query) == sorted((waiter.frontend, waiter.query.id) for waiter in waiters)
        assert set(self._by_cache_key.values()) <= set(self._flights)

    def _query(self, now_ns: int, frontend: str, query: Query, buffers: Sequence[Buffer]) -> None:
        waiter = Waiter(frontend, query, now_ns, now_ns + query.budget_ns)
        spec = self._specs.get(query.model)
        cache_key = b""
        if query.input_hash and spec is not None:
            cache_key = b"".join((query.model.encode(), b"\0", spec.content_hash.encode(), query.input_hash))
            if entry := self.cache.fetch(now_ns, cache_key):
                self.stats.count("nv_cache_num_hits_per_model", spec.name, spec.version)
                answer = Answer(query.id, 0, entry.outputs, model=spec.name, version=spec.version, cached=True)
                self.out.append(Out(frontend, answer, entry.buffers))
                return
            if flight_id := self._by_cache_key.get(cache_key):
                self.stats.count("nv_cache_num_hits_per_model", spec.name, spec.version)
                self._flights[flight_id].followers.append(waiter)
                self._by_query[frontend, query.id] = flight_id
                return
            self.stats.count("nv_cache_num_misses_per_model", spec.name, spec.version)
        self._take_off(now_ns, query.model, cache_key, waiter, [])

    def _take_off(self, now_ns: int, model: str, cache_key: bytes, leader: Waiter, followers: list[Waiter]) -> None:
        self._last_id += 1
        flight = self._flights[self._last_id] = Flight(self._last_id, model, cache_key, leader, followers)
        if cache_key:
            self._by_cache_key[cache_key] = flight.id
        self._by_query[leader.frontend, leader.query.id] = flight.id
        for waiter in followers:
            self._by_query[waiter.frontend, waiter.query.id] = flight.id
        self._submit(now_ns, flight)

    def _submit(self, now_ns: int, flight: Flight) -> None:
        """Ask the controller; without one, its Joined will."""
        if not self._controller:
            return
        leader, query = flight.leader, flight.leader.query
        self.out.append(Out(self._controller, Submit(
            flight.id, flight.model, leader.deadline_ns - now_ns, query.rows, leader.frontend, query.id,
            query.best_effort, query.alike, query.length, query.application,
        )))  # fmt: skip

    def _outputs(self, now_ns: int, worker: str, message: Outputs, buffers: Sequence[Buffer]) -> None:
        counts = [item.rows for item in message.items if item.status == OK]
        columns: list[Sequence[tuple[Tensor, Buffer]]] = [
            [(tensor, buffer)] if len(counts) == 1 else split_rows(tensor, buffer, counts)
            for tensor, buffer in zip(message.outputs, buffers, strict=True)
        ]
        groups = zip(*columns, strict=True) if columns else iter(() for _ in counts)
        for item in message.items:
            if item.status == OK:
                parts = next(groups)
                if flight := self._flights.get(item.id):
                    self._succeed(now_ns, flight, message, parts)
            elif item.status == Status.FAILED:
                self._outcome(now_ns, worker, Outcome(item.id, item.status, item.reason), ())

    def _succeed(self, now_ns: int, flight: Flight, message: Outputs, parts: Sequence[tuple[Tensor, Buffer]]) -> None:
        self._land(flight)
        outputs, buffers = tuple([part[0] for part in parts]), [part[1] for part in parts]
        name, _, version = flight.model.partition("/")
        exec_ns = message.end_ns - message.begin_ns
        leader = flight.leader
        for waiter in (leader, *flight.followers):
            queue_ns = max(0, now_ns - waiter.arrival_ns - exec_ns)
            self.out.append(Out(waiter.frontend, Answer(
                waiter.query.id, OK, outputs, "", 0, name, version, queue_ns, exec_ns, message.batch_size,
                waiter is not leader,
            ), buffers))  # fmt: skip
        if flight.cache_key and (spec := self._specs.get(flight.model)):
            ttl_ns = spec.cache_ttl_ns or self.settings.cache_ttl_ns
            self.cache.store(now_ns, flight.cache_key, outputs, buffers, ttl_ns)

    def _outcome(self, now_ns: int, sender: str, outcome: Outcome, buffers: Sequence[Buffer]) -> None:
        """The flight failed. Whoever has a later deadline than its leader tries again on its own."""
        if (flight := self._flights.get(outcome.id)) is None:
            return
        self._land(flight)
        name, _, version = flight.model.partition("/")
        again = [] if outcome.status == Status.FAILED else [
            waiter for waiter in flight.followers if waiter.deadline_ns > flight.leader.deadline_ns
        ]  # fmt: skip
        for waiter in (flight.leader, *flight.followers):
            if waiter not in again:
                answer = Answer(
                    waiter.query.id, outcome.status, (), outcome.reason, outcome.retry_after_ns, name, version
                )
                self.out.append(Out(waiter.frontend, answer))
        if again:
            again.sort(key=lambda waiter: -waiter.deadline_ns)
            self._take_off(now_ns, flight.model, flight.cache_key, again[0], again[1:])

    def _abandon(self, now_ns: int, frontend: str, query_id: int) -> None:
        """A frontend does not wait any more. The flight goes on while somebody does."""
        flight = self._flights.get(self._by_query.get((frontend, query_id), 0))
        if flight is None:
            self.out.append(Out(frontend, Release((query_id,))))
            return
        gone = [waiter for waiter in flight.followers if (waiter.frontend, waiter.query.id) == (frontend, query_id)]
        if gone:
            flight.followers.remove(gone[0])
            del self._by_query[frontend, query_id]
        else:
            self._land(flight)
            self.out.append(Out(self._controller, Cancel((flight.id,))))
            if flight.followers:
                self._take_off(now_ns, flight.model, flight.cache_key, flight.followers[0], flight.followers[1:])
        self.out.append(Out(frontend, Release((query_id,))))

    def _land(self, flight: Flight) -> None:
        """Remove a flight; whoever calls answers its waiters."""
        del self._flights[flight.id]
        if flight.cache_key and self._by_cache_key.get(flight.cache_key) == flight.id:
            del self._by_cache_key[flight.cache_key]
        leader = flight.leader
        self._by_query.pop((leader.frontend, leader.query.id), None)
        for waiter in flight.followers:
            self._by_query.pop((waiter.frontend, waiter.query.id), None)
