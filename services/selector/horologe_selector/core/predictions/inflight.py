"""Predictions of single models: from the cache, from a flight already under way, or by a Submit of its own.

A flight is one Submit; whoever asks the same meanwhile waits for it too (single flight).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.clock import NEVER_NS
from horologe_common.core.protocol import Out
from horologe_common.status import Status
from horologe_common.wire import Cancel, Outcome, Outputs, Submit, Tensor
from horologe_common.wire.frames import split_rows
from horologe_selector.core.predictions.flight import OK, Flight, Landing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec
    from horologe_common.service.metrics import Stats
    from horologe_selector.core.predictions.cache import Cache
    from horologe_selector.core.predictions.flight import Waiter


class Flights:
    """Law: every waiter taken is given to `landed` once, unless it leaves before. `ttl_ns`: of cached predictions."""

    def __init__(
        self,
        cache: Cache,
        ttl_ns: int,
        stats: Stats,
        post: Callable[[Out], None],
        landed: Callable[[int, Waiter, Landing], None],
    ) -> None:
        self.cache = cache
        self.ttl_ns = ttl_ns
        self.controller = ""
        self._stats = stats
        self._post = post
        self._landed = landed
        self._flights: dict[int, Flight] = {}
        self._by_cache_key: dict[bytes, int] = {}
        self._by_submit: dict[int, int] = {}
        self._last_id = 0

    def ask(self, now_ns: int, waiter: Waiter, spec: ModelSpec | None, key: str, cache_key: bytes) -> Landing | None:
        """The prediction, if it is cached; None: the waiter has a flight. An empty `cache_key` shares with nobody."""
        if cache_key and spec is not None:
            if entry := self.cache.fetch(now_ns, cache_key):
                self._stats.count("nv_cache_num_hits_per_model", spec.name, spec.version)
                return Landing(OK, entry.outputs, entry.buffers, cached=True)
            flight = self._flights.get(self._by_cache_key.get(cache_key, 0))
            if flight is not None and waiter.can_follow(flight.leader, now_ns):
                self._stats.count("nv_cache_num_hits_per_model", spec.name, spec.version)
                self._last_id += 1
                flight.follow(self._last_id, waiter)
                return None
            self._stats.count("nv_cache_num_misses_per_model", spec.name, spec.version)
        self._take_off(now_ns, key, cache_key, spec.cache_ttl_ns if spec else 0, waiter)
        return None

    def _take_off(
        self, now_ns: int, key: str, cache_key: bytes, ttl_ns: int, leader: Waiter, followers: Sequence[Waiter] = ()
    ) -> None:
        self._last_id += 1
        number = leader.flight = self._last_id
        flight = self._flights[number] = Flight(number, key, cache_key, ttl_ns, leader, number, {}, [])
        self._by_submit[number] = number
        for waiter in followers:
            self._last_id += 1
            flight.follow(self._last_id, waiter)
        if cache_key:
            self._by_cache_key[cache_key] = flight.id
        self._submit(now_ns, flight)

    def _submit(self, now_ns: int, flight: Flight) -> None:
        """Ask the controller; without one, its PeerConnected will."""
        if not self.controller:
            return
        leader, query = flight.leader, flight.leader.query
        self._post(
            Out(
                self.controller,
                Submit(
                    flight.submit,
                    flight.key,
                    leader.deadline_ns - now_ns,
                    query.rows,
                    leader.frontend,
                    query.id,
                    leader.best_effort,
                    query.shape_key,
                    query.length,
                    query.application,
                ),
            )
        )

    def joined(self, now_ns: int, controller: str) -> None:
        """A controller, perhaps a new incarnation: it has to be told of everything."""
        self.controller = controller
        for flight in self._flights.values():
            self._submit(now_ns, flight)

    def outputs(self, now_ns: int, worker: str, message: Outputs, buffers: Sequence[Buffer]) -> None:
        """What a worker has computed, rows of several flights."""
        counts = [item.rows for item in message.items if item.status == OK]
        columns: list[Sequence[tuple[Tensor, Buffer]]] = [
            [(tensor, buffer)] if len(counts) == 1 else split_rows(tensor, buffer, counts)
            for tensor, buffer in zip(message.outputs, buffers, strict=True)
        ]
        groups = zip(*columns, strict=True) if columns else iter(() for _ in counts)
        for item in message.items:
            if item.status == OK:
                parts = next(groups)
                if flight := self._flights.get(self._by_submit.get(item.id, 0)):
                    self._succeed(now_ns, flight, message, parts)
            elif item.status == Status.FAILED:
                self.outcome(now_ns, worker, Outcome(item.id, item.status, item.reason))

    def _succeed(self, now_ns: int, flight: Flight, message: Outputs, parts: Sequence[tuple[Tensor, Buffer]]) -> None:
        self._land(flight)
        outputs, buffers = tuple([part[0] for part in parts]), [part[1] for part in parts]
        landing = Landing(OK, outputs, buffers, "", 0, message.end_ns - message.begin_ns, message.batch_size)
        if flight.cache_key:
            self.cache.store(now_ns, flight.cache_key, outputs, buffers, flight.ttl_ns or self.ttl_ns)
        self._landed(now_ns, flight.leader, landing)
        if flight.followers:
            shared = landing._replace(cached=True)
            for waiter in flight.followers.values():
                self._landed(now_ns, waiter, shared)

    def outcome(self, now_ns: int, sender: str, outcome: Outcome, buffers: Sequence[Buffer] = ()) -> None:
        """The flight failed. Whoever has a later deadline than its leader tries again on its own."""
        if (flight := self._flights.get(self._by_submit.get(outcome.id, 0))) is None:
            return
        self._land(flight)
        landing = Landing(int(outcome.status), (), (), outcome.reason, outcome.retry_after_ns)
        final_ns = NEVER_NS if outcome.status == Status.FAILED else flight.leader.deadline_ns
        self._landed(now_ns, flight.leader, landing)
        again = []
        for waiter in flight.followers.values():
            if waiter.deadline_ns > final_ns:
                again.append(waiter)
            else:
                self._landed(now_ns, waiter, landing)
        if again:
            again.sort(key=lambda waiter: (waiter.best_effort, -waiter.deadline_ns))
            self._take_off(now_ns, flight.key, flight.cache_key, flight.ttl_ns, again[0], again[1:])

    def leave(self, now_ns: int, waiter: Waiter) -> None:
        """This one does not wait any more. The flight goes on while somebody does, with another's inputs if need be."""
        flight = self._flights.get(waiter.flight)
        if flight is None:
            return
        if waiter is not flight.leader:
            flight.followers.pop(waiter.number, None)
            return
        self._post(Out(self.controller, Cancel((flight.submit,))))
        if flight.next_leads():
            del self._by_submit[flight.submit]
            self._last_id += 1
            flight.submit = self._last_id
            self._by_submit[flight.submit] = flight.id
            self._submit(now_ns, flight)
        else:
            self._land(flight)

    def _land(self, flight: Flight) -> None:
        del self._flights[flight.id]
        del self._by_submit[flight.submit]
        if flight.cache_key and self._by_cache_key.get(flight.cache_key) == flight.id:
            del self._by_cache_key[flight.cache_key]

    def waiters(self) -> Iterator[Waiter]:
        for flight in self._flights.values():
            yield flight.leader
            yield from flight.followers.values()

    def check(self) -> None:
        self.cache.check()
        assert set(self._by_cache_key.values()) <= set(self._flights)
        assert self._by_submit == {flight.submit: flight.id for flight in self._flights.values()}
        for flight in self._flights.values():
            assert flight.leader.flight == flight.id
            assert all((one.flight, one.number) == (flight.id, number) for number, one in flight.followers.items())
            assert set(flight.followers) <= {number for *_, number in flight.ranks}
