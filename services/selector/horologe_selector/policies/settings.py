"""Reading the settings of a policy: a struct declares their names, bounds and defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec

from horologe_common.status import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

S = TypeVar("S", bound=msgspec.Struct)

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Rate = Annotated[float, msgspec.Meta(gt=0, le=100)]
"""Of learning."""
Memory = Annotated[float, msgspec.Meta(ge=1, le=1e12)]
"""Observations after which one counts 1/e of what it did."""
Tolerance = Annotated[float, msgspec.Meta(ge=0)]
"""How far a number may be from the combined one and agree with it, in the unit of the predictions."""


class Agreement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of policies whose only choice is what agreement means. 0.1: the absolute loss, too, takes 1 for all wrong."""

    tolerance: Tolerance = 0.1


def read_settings(kind: type[S], settings: Mapping[str, Any]) -> S:
    """`settings` as `kind`. Raises `InvalidInput` naming the one that is wrong, what came and what was wanted."""
    try:
        found = msgspec.convert(dict(settings), kind)
    except msgspec.ValidationError as error:
        known = ", ".join(kind.__struct_fields__) or "none"
        raise InvalidInput(f"settings: got {dict(settings)!r}, wanted some of {known}: {error}") from error
    for name in kind.__struct_fields__:
        value = getattr(found, name)
        if value != value:
            raise InvalidInput(f"settings: {name}: got {value}, wanted a number")
    return found
