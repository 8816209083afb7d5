"""Work in steps: each takes a fair turn of the loop, and the memory that the work holds is counted."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

if TYPE_CHECKING:
    from horologe_frontend.http.client_accounts import HeldBytes

T = TypeVar("T")
Steps: TypeAlias = Generator[int, None, T]
"""Work that yields how many bytes it holds, after about a millisecond each time, and returns its result."""


class _Work(Generic[T]):
    """Steps that have begun. A future cannot hold the StopIteration of a generator."""

    def __init__(self, steps: Steps[T]) -> None:
        self.held_bytes = 0
        self._steps = steps
        self._result: list[T] = []

    def advance(self) -> bool:
        """Run one step. Return True after the last one."""
        try:
            self.held_bytes = next(self._steps)
        except StopIteration as end:
            self._result.append(end.value)
        return bool(self._result)

    def pop_result(self) -> T:
        return self._result.pop()


async def run_in_turns(steps: Steps[T], held: HeldBytes) -> T:
    """Return the result of the steps. Raise `Refused` or `TooLarge` if there is no memory for what they hold.

    The bytes of the last step stay counted in `held`. If cancelled, no further step runs.
    """
    account, before, work = held.account, held.size, _Work(steps)
    while not await account.turns.in_turn(account, work.advance):
        held.grow_to(before + work.held_bytes)
    return work.pop_result()


def run_at_once(steps: Steps[T]) -> T:
    """Return the result of steps that are known to be short."""
    work = _Work(steps)
    while not work.advance():
        pass
    return work.pop_result()
