"""Decorators that compile the searches of this package with numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from horologe_common.service.settings import SettingsError

try:
    import numba
except ImportError as error:
    raise SettingsError("numba: not installed: pip install ./experiments") from error

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile a function whose arguments are numbers, arrays and named tuples.

    Every process compiles again, 7 s in total, because numba's cache does not notice changes of named tuples in other
    files.
    """
    return cast("F", numba.njit(function))


def inlined(function: F) -> F:
    """Compile a small function inline into its callers: a call that passes arrays costs 0.2 us."""
    return cast("F", numba.njit(inline="always")(function))
