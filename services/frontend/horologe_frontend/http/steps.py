"""Work in steps: each takes a fair turn of the loop, and the memory that the work holds is counted."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    from horologe_frontend.http.client_accounts import HeldBytes

T = TypeVar("T")
Steps: TypeAlias = Generator[int, None, T]
"""Work that yields how many bytes it holds, after about a millisecond each time, and returns its result."""


def _advance(steps: Steps[T], results: list[T]) -> int:
    """Run one step, and return how many bytes it holds. The last one appends the result."""
    try:
        return next(steps)
    except StopIteration as end:  # a future cannot hold it
        results.append(end.value)
        return 0


async def run_in_turns(steps: Steps[T], held: HeldBytes) -> T:
    """Return the result of the steps. Raise `Refused` or `TooLarge` if there is no memory for what they hold.

    The bytes of the last step stay counted in `held`. If cancelled, no further step runs.
    """
    account, before, results = held.account, held.size, list[T]()
    while True:
        size = await account.turns.in_turn(account, _advance, steps, results)
        if results:
            return results.pop()
        held.grow_to(before + size)


def run_at_once(steps: Steps[T]) -> T:
    """Return the result of steps that are known to be short."""
    results: list[T] = []
    while not results:
        _advance(steps, results)
    return results.pop()
