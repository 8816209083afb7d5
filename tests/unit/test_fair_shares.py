"""Fair shares: a client that sends more than can be executed delays the others by a few milliseconds only."""

from __future__ import annotations

import random
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from builders import a_predict, some_bytes
from frontend_builders import CONTROLLER, SELECTOR, WORKER, connected_frontend
from horologe_common.clock import ms, s
from horologe_common.core.protocol import PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import Answer, Cancel, Dispatch, Query
from horologe_frontend.core.fair_shares import CONTENTION_NS, FREE_REQUESTS, TARGET_NS, ClientWindow

FLOOD, OTHER = "client/aa", "client/bb"
OK = int(Status.OK)
EXEC_MS = {1: 2.61, 2: 3.78, 4: 5.61, 8: 9.13, 16: 15.67}


class Backend:
    """A frontend, and a selector that answers its queries in order of deadline, one every `exec_ns`."""

    def __init__(self, exec_ns: int = ms(1)) -> None:
        self.frontend = connected_frontend(max_pending=100_000)
        self.exec_ns = exec_ns
        self.now_ns = 0
        self.queue: deque[tuple[int, Query]] = deque()
        self.answers: dict[str, list[tuple[int, Answer]]] = {FLOOD: [], OTHER: []}
        self._last_id = 0

    def send(self, client: str, count: int = 1, budget_ms: float = 1000) -> None:
        for _ in range(count):
            self._last_id += 1
            predict = a_predict(self._last_id, "one", budget_ms)
            self.frontend.handle(self.now_ns, client, predict, [some_bytes()])
        self.collect()

    def collect(self) -> None:
        """Queue what the frontend has sent to the selector, and store the answers to clients."""
        outs, self.frontend.out = self.frontend.out, []
        for out in outs:
            message: Any = out.message
            if isinstance(message, Query):
                self.queue.append((self.now_ns, message))
            elif isinstance(message, Cancel):
                self.queue = deque(entry for entry in self.queue if entry[1].id not in message.ids)
            elif isinstance(message, Answer):
                self.answers[out.to].append((self.now_ns, message))

    def first_query(self) -> tuple[int, Query] | None:
        return min(self.queue, key=lambda entry: entry[0] + entry[1].budget_ns, default=None)

    def execute(self) -> None:
        """Let `exec_ns` pass, in which the query with the earliest deadline is executed."""
        first = self.first_query()
        while first is not None and first[0] + first[1].budget_ns < self.now_ns + self.exec_ns:
            self.queue.remove(first)
            self.frontend.handle(self.now_ns, SELECTOR, Answer(first[1].id, int(Status.REFUSED)), ())
            self.collect()
            first = self.first_query()
        if first is not None:
            self.queue.remove(first)
            self.frontend.handle(self.now_ns, CONTROLLER, Dispatch(1, WORKER, (first[1].id,)), ())
            queue_ns = self.now_ns - first[0]
        self.now_ns += self.exec_ns
        if first is not None:
            answer = Answer(first[1].id, int(Status.OK), queue_ns=queue_ns, exec_ns=self.exec_ns, batch_size=1)
            self.frontend.handle(self.now_ns, SELECTOR, answer, ())
        self.frontend.tick(self.now_ns)
        self.collect()

    def execute_batch(self) -> None:
        """Execute the queries with the earliest deadlines as one batch, with the times of a ResNet50 (Clockwork)."""
        queries = sorted(self.queue, key=lambda entry: entry[0] + entry[1].budget_ns)
        size = max((size for size in EXEC_MS if size <= len(queries)), default=0)
        batch, begin_ns = queries[:size], self.now_ns
        for entry in batch:
            self.queue.remove(entry)
        self.frontend.handle(begin_ns, CONTROLLER, Dispatch(1, WORKER, tuple(query.id for _, query in batch)), ())
        exec_ns = ms(EXEC_MS[size]) if size else ms(0.2)
        self.now_ns += exec_ns
        for at_ns, query in batch:
            answer = Answer(query.id, OK, queue_ns=begin_ns - at_ns, exec_ns=exec_ns, batch_size=size)
            self.frontend.handle(self.now_ns, SELECTOR, answer, ())
        self.frontend.tick(self.now_ns)
        self.collect()

    def run(self, steps: int, flood: int, other_every: int = 20, **flood_fields: Any) -> list[int]:
        """Send `flood` requests before each step, and one of the other client. Return the delays of the latter."""
        sent_ns, before = [], len(self.answers[OTHER])
        for step in range(steps):
            self.send(FLOOD, flood, **flood_fields)
            if step % other_every == 0:
                sent_ns.append(self.now_ns)
                self.send(OTHER, budget_ms=2000)
            self.execute()
        self.frontend.check()
        answers = self.answers[OTHER][before:]
        return [at_ns - begin_ns for (at_ns, _), begin_ns in zip(answers, sent_ns, strict=False)]


def test_a_flood_delays_others_by_the_target_only() -> None:
    """Four times as many requests as can be executed, with earlier deadlines than those of the other client."""
    backend = Backend()
    backend.run(20, 0, 1)
    delays = backend.run(1000, 4)
    assert len(delays) >= 49
    assert max(delays) <= ms(20 + FREE_REQUESTS)
    assert sorted(delays)[-5] <= 3 * TARGET_NS


def test_windows_do_not_shrink_batches() -> None:
    """Two clients send 0.9 of what batches of 16 carry. Batches of 4, which carry 0.7 of it, would lose the rest."""
    backend, rng, arrivals_ns = Backend(), random.Random(1), {FLOOD: 0.0, OTHER: 0.0}
    while backend.now_ns < s(10):
        for client in arrivals_ns:
            while arrivals_ns[client] <= backend.now_ns:
                backend.send(client, budget_ms=100)
                arrivals_ns[client] += rng.expovariate(450) * s(1)
        backend.execute_batch()
    backend.frontend.check()
    for client in arrivals_ns:
        statuses = [answer.status for _, answer in backend.answers[client]]
        assert statuses.count(OK) >= 0.98 * len(statuses)


def test_of_two_windows_the_smaller_grows_and_the_larger_shrinks() -> None:
    request: Any = SimpleNamespace(id=1, arrival_ns=0, deadline_ns=ms(120))
    small, large = ClientWindow(0), ClientWindow(0)
    small.size, large.size = 4.0, 8.0
    for number, window, rival in ((1, small, large), (2, large, small)):
        window.record_finished(ms(100), request, Answer(number, OK, queue_ns=ms(12), exec_ns=ms(3)), rival)
    assert (small.size, large.size) == (4.25, 8.0)  # within the target: four batches
    for number, window, rival in ((3, small, large), (4, large, small)):
        window.record_finished(ms(200), request, Answer(number, OK, queue_ns=ms(16), exec_ns=ms(3)), rival)
    assert (small.size, large.size) == (4.25, 6.0)  # once per delay


@pytest.mark.parametrize(
    ("budget_ms", "exec_ms", "target_ms"),
    [(1000, 1, 4), (1000, 3, 12), (60, 3, 10), (1000, 9, 20), (100, 50, 50), (12, 0.1, 4)],
)
def test_the_target_follows_batches_and_budgets(budget_ms: float, exec_ms: float, target_ms: float) -> None:
    request: Any = SimpleNamespace(id=1, arrival_ns=0, deadline_ns=ms(budget_ms))
    for queue_ns, grows in ((ms(target_ms), True), (ms(target_ms) + 1000, False)):
        window = ClientWindow(0)
        window.record_finished(s(1), request, Answer(1, OK, queue_ns=queue_ns, exec_ns=ms(exec_ms)), None)
        assert (window.size > FREE_REQUESTS) is grows


def test_the_flood_gets_what_others_leave() -> None:
    backend = Backend()
    backend.run(1000, 4)
    executed = [answer for _, answer in backend.answers[FLOOD] if answer.status == Status.OK]
    assert len(executed) >= 850


def test_requests_that_would_wait_too_long_are_refused_on_arrival() -> None:
    backend = Backend()
    backend.run(1000, 6, budget_ms=100)
    statuses = [answer.status for _, answer in backend.answers[FLOOD][-3000:]]
    assert set(statuses) <= {Status.OK, Status.REFUSED, Status.LATE}
    assert statuses.count(Status.LATE) < len(statuses) // 100
    refused = [answer for _, answer in backend.answers[FLOOD] if answer.status == Status.REFUSED]
    assert sum(answer.retry_after_ns > 0 for answer in refused) > 0.9 * len(refused)


def test_a_flood_of_a_slow_model_delays_others_by_some_batches() -> None:
    backend = Backend(ms(50))
    backend.run(100, 4, 10)
    delays = sorted(backend.run(300, 4, 10))
    assert len(delays) >= 29
    assert delays[len(delays) // 2] <= ms(200)  # 1,500 ms without windows


def test_a_client_alone_is_not_limited() -> None:
    backend = Backend()
    backend.send(FLOOD, 5000)
    assert len(backend.queue) == 5000
    assert not backend.frontend._shares.windows


def test_few_open_requests_are_not_limited() -> None:
    backend = Backend()
    backend.send(OTHER, FREE_REQUESTS)
    backend.send(FLOOD, FREE_REQUESTS)
    assert len(backend.queue) == 2 * FREE_REQUESTS


def test_the_window_ends_when_others_have_left() -> None:
    backend = Backend()
    backend.send(OTHER)
    backend.send(FLOOD, 3000, 100_000)
    assert len(backend.queue) == 1 + FREE_REQUESTS
    backend.execute()
    backend.now_ns += CONTENTION_NS
    for _ in range(100):
        backend.execute()
    assert not backend.frontend._shares.windows
    backend.frontend.check()


def test_cancelled_and_expired_requests_leave_the_queue_of_their_client() -> None:
    backend = Backend()
    backend.send(OTHER)
    backend.send(FLOOD, 100, budget_ms=50)
    backend.frontend.handle(backend.now_ns, FLOOD, Cancel(tuple(range(90, 102))), ())
    backend.frontend.check()
    backend.now_ns += s(3)
    backend.frontend.tick(backend.now_ns)
    backend.frontend.check()
    assert backend.frontend.drained()


def test_waiting_requests_of_a_lost_client_are_dropped() -> None:
    backend = Backend()
    backend.send(OTHER)
    backend.send(FLOOD, 100)
    backend.frontend.handle(backend.now_ns, FLOOD, PeerDisconnected(FLOOD), ())
    backend.collect()
    backend.frontend.check()
    assert len(backend.queue) == 1
    assert backend.frontend.pending() == 1


def test_waiting_requests_are_sent_by_deadline() -> None:
    backend = Backend()
    backend.send(OTHER)
    backend.send(FLOOD, FREE_REQUESTS)
    backend.send(FLOOD, 3, 5000)
    backend.send(FLOOD, 1, 3000)
    while len(backend.answers[FLOOD]) < FREE_REQUESTS + 1:
        backend.execute()
    budgets = [query.budget_ns for _, query in backend.queue]
    assert all(budget_ns > s(3) for budget_ns in budgets)


def test_a_request_that_expires_before_its_turn_is_refused() -> None:
    """It was never sent to a selector, so nothing of its work was lost."""
    backend = Backend()
    backend.run(1000, 4)
    begin_ns = backend.now_ns
    while backend.frontend._shares.windows[FLOOD].waiting:
        backend.send(OTHER, budget_ms=50)  # is not dispatched, so the flood has to wait
        backend.now_ns += ms(10)
        backend.frontend.tick(backend.now_ns)
        backend.collect()
    expired = [answer for at_ns, answer in backend.answers[FLOOD] if at_ns > begin_ns]
    assert len(expired) > 100
    assert {(answer.status, answer.reason) for answer in expired} == {(Status.REFUSED, "not started by the deadline")}


@pytest.mark.parametrize("before", [0, 20], ids=["held in the outage", "held before it"])
def test_an_outage_is_no_interval_between_finished_requests(before: int) -> None:
    """The requests that an outage delays finish soon after it: a further one is not expected to wait for long."""
    window, begin_ns = ClientWindow(s(100)), s(100)
    for number in range(40):
        request: Any = SimpleNamespace(id=number, arrival_ns=begin_ns, deadline_ns=begin_ns + s(15))
        window.hold(request)
    for number in range(before):
        window.record_finished(begin_ns + ms(10 * number), request, Answer(number, OK, queue_ns=ms(1)), None)
    window.record_finished(begin_ns + s(3), request, Answer(99, OK, queue_ns=s(2)), None)
    assert window.wait_ns() < s(2)
