"""The pending requests of a client: their number, size, timers, and their end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe.core.call import BEST_EFFORT_NS, Call
from horologe_common.core.indexed_heap import Timers
from horologe_common.status import HorologeError, Lost, Refused

if TYPE_CHECKING:
    from collections.abc import Iterator


class PendingRequests:
    """Requests by id, bounded in number and in bytes of inputs.

    Invariant: `held_bytes` is the size of all requests and at most `max_bytes`. Each request has one timer.
    """

    def __init__(self, grace_ns: int, max_open: int, max_bytes: int) -> None:
        self.grace_ns = grace_ns
        self.max_open = max_open
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self._calls: dict[int, Call] = {}
        self._deadlines = Timers()
        self.get = self._calls.get
        self.next_ns = self._deadlines.next_ns

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, call: Call) -> bool:
        return call.id in self._calls

    def __iter__(self) -> Iterator[Call]:
        return iter(list(self._calls.values()))

    def check_room(self) -> None:
        """Raise `Refused` if there is no room for another request."""
        if len(self._calls) >= self.max_open:
            raise Refused(f"client queue full: {self.max_open} requests are open")

    def add(self, call: Call, slo_ns: int = 0) -> None:
        """Add the request, or set its timer again when the SLO of its model has arrived."""
        self._calls[call.id] = call
        self._deadlines.arm(call.id, call.begun_ns + (call.budget_ns or slo_ns or BEST_EFFORT_NS) + self.grace_ns)

    def add_bytes(self, call: Call, size: int) -> None:
        """Add the bytes of a request's inputs. Raises `Refused` if there are too many."""
        if self.held_bytes + size > self.max_bytes:
            raise Refused(f"client queue full: {self.held_bytes} bytes are open, {size} more wanted")
        call.size = size
        self.held_bytes += size

    def remove(self, call: Call) -> None:
        """Remove the request without calling its sink."""
        if self._calls.pop(call.id, None) is not None:
            self._deadlines.cancel(call.id)
            self.held_bytes -= call.size

    def finish(self, call: Call, result: Any) -> None:
        """Remove a request and pass its result or error to its sink. It need not have been added."""
        self.remove(call)
        if call.sink.done():
            return
        if isinstance(result, HorologeError):
            call.sink.set_exception(result)
        else:
            call.sink.set_result(result)

    def expire(self, now_ns: int) -> None:
        """End requests with `Lost` whose deadline and grace have passed."""
        for call_id in self._deadlines.pop_expired(now_ns):
            call = self._calls[call_id]
            why = "no answer came" if call.sent else "the frontend could not be reached"
            self.finish(call, Lost(f"{why} within {(now_ns - call.begun_ns) / 1e6:.0f} ms"))

    def check(self) -> None:
        assert self.held_bytes == sum(call.size for call in self._calls.values()) <= self.max_bytes
        assert len(self._deadlines) == len(self._calls)
        self._deadlines.check()
