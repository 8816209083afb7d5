"""Thread for calls that may take seconds: those of the scaler, and rehearsals."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Call = TypeVar("Call")
Answer = TypeVar("Answer")


class CallThread(threading.Thread, Generic[Call, Answer]):
    """Answers one call after another, and ends with the process. `post` is called on the thread with each answer."""

    def __init__(self, name: str, answer: Callable[[Call], Answer], post: Callable[[Answer], None]) -> None:
        super().__init__(name=name, daemon=True)
        self._answer, self._post = answer, post
        self._calls: SimpleQueue[Call] = SimpleQueue()

    def call(self, message: Call) -> None:
        """Queue a call."""
        self._calls.put(message)

    def run(self) -> None:
        """Answer all calls."""
        while True:
            self._post(self._answer(self._calls.get()))
