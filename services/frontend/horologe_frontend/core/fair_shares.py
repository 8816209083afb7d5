"""Fair shares: how many requests one client may have in the system while other clients send requests too.

The selector and the controller order requests by deadline, not by client. A client that sends more than the workers
can execute would fill their queues up to the deadlines of its requests. Therefore such a client has a window: at most
so many of its requests are sent, and the others wait here by deadline. The window adapts to the queueing delay of its
requests, with a target delay as in LEDBAT (RFC 6817, section 2.4.2): it uses the capacity that other clients leave. Of
two clients whose requests wait, the one with the smaller window grows and the other one shrinks.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from horologe_common.clock import ms, s
from horologe_common.core.indexed_heap import IndexedHeap
from horologe_common.status import Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.wire import Answer
    from horologe_frontend.core.requests import OpenRequests, Request

FREE_REQUESTS = 16
"""A client gets a window when it has as many open requests."""
TARGET_NS, TARGET_MAX_NS, TARGET_BATCHES, BUDGET_PART = ms(4), ms(20), 4, 6
"""Queueing delay of a client's requests above which its window shrinks: the execution time of four batches, at most a
sixth of the budget and 20 ms, at least the execution time of one batch and 4 ms. With one batch in place of four,
windows stay small, and so do batches: of two clients with 450 requests/s each, 64% of the requests are answered, with
four batches all (ResNet50 on an emulated V100, which executes 1,020/s, SLO 100 ms)."""
SHORTEST = 0.5
"""Factor by which a window shrinks at most, once per queueing delay."""
GROWTH = 0.25
"""Requests by which the window grows for each request that finishes within the target."""
CONTENTION_NS = s(10)
"""A client has no window if no other client has had an open request for this long."""
YIELD_NS, YIELD_BATCHES = ms(20), 8
"""Longest time for which a request of another client keeps the requests outside a window waiting, and the same in
executed batches. If it is not dispatched then, something else is the reason, such as a model that is loaded."""
RELEASED = 64
"""Requests that are sent when one has finished, after the other clients have left."""
SMOOTHING = 16
"""Finished requests over which a window smooths its means: of their intervals, and of their time in the system."""
OUTLIER = 32
"""An interval counts as at most as many times the mean: a batch finishes as many requests at once. After an outage of
2 s, a client with 35 requests was refused, because they were expected to take 2 s each."""


class ClientWindow:
    """The window of one client, and the requests outside it. `size`: requests that may be in the system."""

    __slots__ = ("_cut_ns", "_gap_ns", "_last_ns", "_service_ns", "size", "waiting")

    def __init__(self, now_ns: int) -> None:
        self.size = float(FREE_REQUESTS)
        self.waiting: IndexedHeap[int, int] = IndexedHeap()
        """Ids of the requests that wait, by deadline."""
        self._cut_ns, self._last_ns = now_ns, 0
        self._gap_ns = 0.0
        self._service_ns = float(TARGET_NS)
        """Mean time of its requests in the system: queueing and execution."""

    def wait_ns(self) -> int:
        """Return for how long a further request is expected to wait."""
        return int(self._gap_ns * len(self.waiting) + self._service_ns)

    def hold(self, request: Request) -> None:
        """Keep a request. Intervals between finished requests count while requests wait."""
        if not self.waiting:
            self._last_ns = 0
        self.waiting.push(request.id, request.deadline_ns)

    def record_finished(self, now_ns: int, request: Request, answer: Answer, rival: ClientWindow | None) -> None:
        """Adapt the window to the delay of a request of its client that has finished.

        `rival` is the window of another client whose requests wait. The smaller one grows, the larger one shrinks: both
        cause the delay, and it is longer for the client whose deadlines are later.
        """
        if answer.status != Status.OK and not answer.queue_ns:  # it was not executed
            return
        if self.waiting:
            gap_ns, mean_ns = now_ns - self._last_ns, self._gap_ns
            if self._last_ns and mean_ns:
                self._gap_ns += (min(gap_ns, OUTLIER * mean_ns) - mean_ns) / SMOOTHING
            elif self._last_ns:
                self._gap_ns = gap_ns
            self._last_ns = now_ns
        self._service_ns += (answer.queue_ns + answer.exec_ns - self._service_ns) / SMOOTHING
        target_ns = _target_ns(request, answer)
        if answer.queue_ns <= target_ns:
            if rival is None or self.size <= rival.size:
                self.size += GROWTH
        else:
            larger = self if rival is None or self.size >= rival.size else rival
            larger.shrink(now_ns, answer.queue_ns, target_ns)

    def shrink(self, now_ns: int, delay_ns: int, target_ns: int) -> None:
        """Shrink the window by a delay above the target, at most once per delay."""
        if now_ns >= self._cut_ns:
            self.size = max(1.0, self.size * max(SHORTEST, target_ns / delay_ns))
            self._cut_ns = now_ns + delay_ns


class FairShares:
    """The windows of clients with many open requests. Requests wait while one of another client is not dispatched.

    Without that, a client with short deadlines would always be ahead of one with long deadlines.

    Invariant: a client whose requests wait has a request in the system, or is `_stalled`.
    """

    def __init__(self, requests: OpenRequests) -> None:
        self.windows: dict[str, ClientWindow] = {}
        self._requests = requests
        self._contended_until_ns = 0
        self._yield_ns = YIELD_NS
        self._watched: deque[Request] = deque()
        """Requests of clients without windows that may not be dispatched yet, by arrival."""
        self._stalled: dict[str, bool] = {}
        """Clients whose requests wait for those of others to be dispatched."""
        self._rivals: list[ClientWindow] = []
        """The last two windows with waiting requests from which a request has finished."""

    def expected_wait_ns(self, now_ns: int, client: str, open_requests: int) -> int | None:
        """Return for how long a further request of a client is expected to wait, or None if it may be sent at once."""
        window = self.windows.get(client)
        if window is None:
            if open_requests < FREE_REQUESTS or not self._is_contended(now_ns):
                return None
            window = self.windows[client] = ClientWindow(now_ns)
        if not window.waiting and open_requests < window.size:
            return None
        return window.wait_ns()

    def hold(self, request: Request) -> None:
        """Keep a request until it is in the window of its client."""
        self.windows[request.client].hold(request)

    def holds(self, request: Request) -> bool:
        """Return whether the request waits."""
        window = self.windows.get(request.client)
        return window is not None and request.id in window.waiting

    def watch(self, request: Request) -> None:
        """Let the requests of clients with windows wait until this one is dispatched, at most for a while."""
        if request.client not in self.windows:
            self._is_yielding(request.arrival_ns)  # removes those that need not be watched any more
            self._watched.append(request)

    def on_finished(self, now_ns: int, request: Request, answer: Answer) -> Sequence[Request]:
        """Return the requests to send, now that a request has been removed from the open ones."""
        client = request.client
        window = self.windows.get(client)
        if window is None:
            target_ns = _target_ns(request, answer)
            if answer.queue_ns > target_ns:  # the windows of others are too large
                for other in self.windows.values():
                    other.shrink(now_ns, answer.queue_ns, target_ns)
        elif not window.waiting.remove(request.id):
            window.record_finished(now_ns, request, answer, self._rival_of(window))
            self._yield_ns = max(YIELD_NS, YIELD_BATCHES * answer.exec_ns)
            if window.waiting:
                self._stalled[client] = True
            elif not self._is_contended(now_ns):
                self.drop_client(client)
        return self.release(now_ns) if self._stalled else ()

    def release(self, now_ns: int) -> Sequence[Request]:
        """Return the requests to send."""
        if self._is_yielding(now_ns):
            return ()
        stalled, self._stalled = self._stalled, {}
        return [request for client in stalled for request in self._fill_window(now_ns, client)]

    def next_ns(self) -> int | None:
        """Return when to call `release` if no request ends before, or None."""
        return self._watched[0].arrival_ns + self._yield_ns if self._stalled and self._watched else None

    def drop_client(self, client: str) -> None:
        """Remove the window of a client. If it has disconnected, its requests are cancelled next."""
        window = self.windows.pop(client, None)
        self._rivals = [rival for rival in self._rivals if rival is not window]
        self._stalled.pop(client, None)

    def check(self) -> None:
        assert all(rival in self.windows.values() for rival in self._rivals)
        for client, window in self.windows.items():
            own = self._requests.ids_of_client(client).values()
            assert set(window.waiting) <= set(own)
            assert not window.waiting or client in self._stalled or len(window.waiting) < len(own)

    def _rival_of(self, window: ClientWindow) -> ClientWindow | None:
        """Return another window whose requests wait, or None, and remember `window` if its requests wait."""
        others = [rival for rival in self._rivals if rival is not window and rival.waiting]
        self._rivals = [*others[-1:], window] if window.waiting else others
        return others[-1] if others else None

    def _is_contended(self, now_ns: int) -> bool:
        """Return whether more than one client has had open requests recently."""
        if self._requests.count_clients() > 1:
            self._contended_until_ns = now_ns + CONTENTION_NS
        return now_ns < self._contended_until_ns

    def _is_yielding(self, now_ns: int) -> bool:
        """Return whether requests must wait for one of another client."""
        watched = self._watched
        while watched:
            first = watched[0]
            if not first.worker and first.id in self._requests and now_ns < first.arrival_ns + self._yield_ns:
                return True
            watched.popleft()
        return False

    def _fill_window(self, now_ns: int, client: str) -> list[Request]:
        window = self.windows[client]
        waiting = window.waiting
        sent = len(self._requests.ids_of_client(client)) - len(waiting)
        limit = int(window.size) if self._is_contended(now_ns) else sent + RELEASED
        released = [self._requests.find_request(waiting.pop()[1]) for _ in range(min(len(waiting), limit - sent))]
        return [request for request in released if request is not None]


def _target_ns(request: Request, answer: Answer) -> int:
    """Return the queueing delay that a request may have. Others with its SLO then have five sixths of it left."""
    most_ns = min(TARGET_MAX_NS, (request.deadline_ns - request.arrival_ns) // BUDGET_PART)
    return max(TARGET_NS, answer.exec_ns, min(TARGET_BATCHES * answer.exec_ns, most_ns))
