"""numba, which the searches of this package need: the extra `tables`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from horologe_common.service.settings import SettingsError

try:
    import numba
except ImportError as error:
    raise SettingsError("numba: not installed, wanted the extra: pip install 'horologe[tables]'") from error

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """The same function as machine code; its arguments are numbers, arrays and named tuples.

    It is compiled anew in each process, 7 s in all: numba's cache does not notice when a named tuple of another file
    changes.
    """
    return cast("F", numba.njit(function))


def inlined(function: F) -> F:
    """The same for a small part of such a function, which becomes part of it: calls that pass arrays cost 0.2 us."""
    return cast("F", numba.njit(inline="always")(function))
