"""Waiting in tests of real processes and threads."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
PAUSE_S = 0.02


def is_running(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(
    condition: Callable[[], T],
    timeout_s: float = 40,
    retry: tuple[type[Exception], ...] = (),
    pause_s: float = PAUSE_S,
) -> T:
    """Return the first true value of the condition. Errors of the types `retry` count as false.

    Raises AssertionError after `timeout_s`.
    """
    end_s, last = time.monotonic() + timeout_s, "it is false"
    while True:
        try:
            if value := condition():
                return value
        except retry as error:
            last = repr(error)
        assert time.monotonic() < end_s, f"condition not met in {timeout_s:g} s: {last}"
        time.sleep(pause_s)
