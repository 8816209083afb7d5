"""Names of variable dimensions in an ONNX graph: a name such as `past + 1` says how sizes belong together."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def fitting_shapes(nodes: Sequence[Any], length: int, limit: int) -> dict[str, tuple[int, ...]]:
    """Return warm-up shapes that fit together, if a dimension is named as a sum, such as `past + 1` of a mask.

    Every other variable size is `length`, or less so that no sum exceeds `limit` (0: no limit). -1 stands for `length`.
    """
    sums = [dim for node in nodes for dim in node.shape if isinstance(dim, str) and "+" in dim]
    if not sums:
        return {}
    used = length
    if limit:
        lengths = range(1, length + 1)
        used = bisect_right(lengths, limit, key=lambda tried: max(_sum(dim, tried) for dim in sums))
    variable = -1 if used == length else used
    return {
        node.name: tuple(
            dim if isinstance(dim, int) else _sum(dim, used) if dim in sums else variable for dim in node.shape
        )
        for node in nodes
    }


def _sum(dimension: str, length: int) -> int:
    """Return a size that is named as a sum, in which every name is `length`."""
    terms = [term.strip() for term in dimension.split("+")]
    return sum(int(term) if term.isdecimal() else length for term in terms)
