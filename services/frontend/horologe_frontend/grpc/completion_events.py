"""Events of gRPC's C core, handled on the loop."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from grpc._cython import cygrpc

from horologe_common.service.log import logger

if TYPE_CHECKING:
    import asyncio

EVENTS_MAX = 64
"""Events that are handled in one iteration of the loop."""
NO_WAIT = 0.0
"""Deadline in the past: a poll returns at once."""
log = logger("grpc")


class CompletionEvents:
    """Polls a completion queue. The tag of each operation is a function that gets its event, on the loop.

    A thread waits for the first event. The loop then polls until there are no more, and the thread waits again. So a
    server under load needs one wake-up of the loop for many events.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.queue: Any = cygrpc.CompletionQueue()
        self._loop = loop
        self._first: Any = None
        """The event for which the thread has waited."""
        self._may_wait = threading.Lock()
        """Released when the thread may wait for the next event."""
        self._may_wait.acquire()

    def start(self) -> None:
        """Begin to handle events."""
        threading.Thread(target=self._wait, name="grpc-events", daemon=True).start()

    def close(self) -> None:
        """End the thread, once every operation has had its event. None may be started any more."""
        self.queue.shutdown()

    def _wait(self) -> None:
        while (event := self.queue.poll()).tag is not None:  # None: the queue has been shut down
            self._first = event
            self._loop.call_soon_threadsafe(self._handle_events)
            self._may_wait.acquire()

    def _handle_events(self) -> None:
        """Handle the events that have arrived, again in the next iteration; without any, let the thread wait."""
        event, self._first = self._first, None
        poll = self.queue.poll
        for handled in range(EVENTS_MAX):
            event = event or poll(NO_WAIT)
            if event.tag is None:  # there is no event
                if handled:  # the calls that run now may start operations whose events come at once
                    break
                self._may_wait.release()
                return
            try:
                event.tag(event)
            except Exception:  # the other events must still be handled
                log.exception("event fault")
            event = None
        self._loop.call_soon(self._handle_events)
