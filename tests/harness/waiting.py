"""Waiting in tests of real processes and threads."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PAUSE_S = 0.02


def until(condition: Callable[[], Any], timeout_s: float = 40) -> None:
    """Wait until the condition holds. Raises AssertionError after `timeout_s`."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, "condition not met in time"
        time.sleep(PAUSE_S)


def is_running(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
