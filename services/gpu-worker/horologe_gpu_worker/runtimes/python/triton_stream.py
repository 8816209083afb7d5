"""Responses of a decoupled `TritonPythonModel`: each step of a stream takes one.

`execute` runs in a thread of the stream. `send` returns when the stream wants another response, so that the model rests
between its steps, also in threads of its own.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from horologe_common.status import ModelFailed

if TYPE_CHECKING:
    from collections.abc import Callable

FINAL = 1
"""The flag TRITONSERVER_RESPONSE_COMPLETE_FINAL of `send`."""
WAIT_S = 0.5
"""A step without a response ends after this time without an item: a thread of the model that serves several streams may
wait for another one. It is shorter than the shortest time after which a call is hung."""


class Sent(NamedTuple):
    """A call of `send`."""

    response: Any
    """None: only flags were sent."""
    final: bool


NOTHING = Sent(None, final=False)


class StreamEnded(BaseException):
    """Ends `execute` after the end of its stream. Models that catch Exception do not catch it."""


class ResponseSender:
    """What `get_response_sender` of a request returns. `execute` has this request."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sent: deque[Sent] = deque()
        self._wanted = self._closed = False
        self._failure: Exception | None = None

    def start(self, execute: Callable[[], Any]) -> None:
        """Begin to run `execute`."""
        # A daemon: a model that does not return must not keep the process from its end.
        self._thread = threading.Thread(target=self._run, args=(execute,), name="execute", daemon=True)
        self._thread.start()

    def send(self, response: Any = None, flags: int = 0) -> None:
        """Give a response to the stream, and wait until it wants another one.

        After the end of the stream, this ends the thread of `execute`, and does nothing in other threads.
        """
        with self._changed:
            if not self._closed:
                self._sent.append(Sent(response, final=bool(flags & FINAL)))
                self._wanted = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._wanted or self._closed or bool(flags & FINAL))
            if self._closed and threading.current_thread() is self._thread:
                raise StreamEnded

    def is_cancelled(self) -> bool:
        """Return whether the stream has ended."""
        return self._closed

    def take(self) -> Sent:
        """Return the next call of `send`, or `NOTHING` after `WAIT_S`. Raise what `execute` has raised."""
        with self._changed:
            if not self._sent:
                self._wanted = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._sent or self._failure, WAIT_S)
            if self._sent:
                return self._sent.popleft()
            if self._failure is not None:
                raise self._failure
        return NOTHING

    def close(self) -> None:
        """End the stream. Wait up to `WAIT_S` for the end of `execute`: the next one must not run beside it."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(WAIT_S)

    def _run(self, execute: Callable[[], Any]) -> None:
        try:
            result = execute()
            if inspect.iscoroutine(result):
                result = asyncio.run(result)
            if result is not None:
                kind = type(result).__name__
                raise ModelFailed(f"execute: got {kind}, wanted None: a decoupled model sends its responses")
        except StreamEnded:
            return
        except Exception as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()
