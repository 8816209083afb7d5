"""Settings of policies: their value ranges, and how they are read from an application's declaration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec

from horologe_common.status import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

S = TypeVar("S", bound=msgspec.Struct)

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Rate = Annotated[float, msgspec.Meta(gt=0, le=100)]
"""Learning rate."""
Memory = Annotated[float, msgspec.Meta(ge=1, le=1e12)]
"""Number of later observations after which an observation counts 1/e of its original weight."""
Weight = Annotated[float, msgspec.Meta(ge=0, le=1e13)]
"""Range that a stored, discounted number or sum of losses of observations must have: more than any memory allows."""
Tolerance = Annotated[float, msgspec.Meta(ge=0)]
"""Largest distance from the combined number at which a prediction agrees with it, in the unit of the predictions."""


def read_settings(kind: type[S], settings: Mapping[str, Any]) -> S:
    """Convert `settings` to `kind`. Raises `InvalidInput` naming the invalid setting, its value and what is allowed."""
    try:
        values = msgspec.convert(dict(settings), kind)
    except msgspec.ValidationError as error:
        names = ", ".join(kind.__struct_fields__) or "none"
        raise InvalidInput(f"settings: got {dict(settings)!r}, wanted some of {names}: {error}") from error
    for name in kind.__struct_fields__:
        value = getattr(values, name)
        if value != value:
            raise InvalidInput(f"settings: {name}: got {value}, wanted a number")
    return values
