"""Faults of one part of a message or a tick, which must not stop the other parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

Item = TypeVar("Item")


def for_each(items: Iterable[Item], call: Callable[[Item], object]) -> None:
    """Call `call` with every item. Raise what it has raised after the last item, so that the host reports it."""
    errors: list[Exception] = []
    for item in items:
        try:
            call(item)
        except Exception as error:
            errors.append(error)
    raise_faults(errors)


def raise_faults(errors: Sequence[Exception]) -> None:
    """Raise the error, or several in an `ExceptionGroup`; nothing if there are none."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ExceptionGroup(f"{len(errors)} faults", errors)
