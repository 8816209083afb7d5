"""Tests that are coroutine functions."""

from __future__ import annotations

import asyncio
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own."""

    @wraps(test)
    def run(*arguments: Any, **fixtures: Any) -> None:
        asyncio.run(test(*arguments, **fixtures))

    return run
