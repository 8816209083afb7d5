"""Variable dimensions of an exported program: which of them count rows, and which sizes they can have together.

A dimension is a number, or an expression of symbols such as `s0 + 1`. Imports nothing but PyTorch and SymPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import sympy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Dimensions = tuple[int | Any, ...]
    """Sizes, or SymPy expressions for variable sizes."""


def dimensions_of(value: Any) -> Dimensions:
    """Return the dimensions of a traced tensor."""
    return tuple(dim if isinstance(dim, int) else dim.node.expr for dim in value.shape)


class Bounds(NamedTuple):
    """Smallest and largest size. None: no limit."""

    low: int
    high: int | None

    def clamp(self, size: int) -> int:
        return max(self.low, size if self.high is None else min(size, self.high))


class DynamicShapes:
    """Dimensions of the inputs by name and of the outputs, and the bounds of their symbols."""

    def __init__(
        self, inputs: Mapping[str, Dimensions], outputs: Iterable[Dimensions], ranges: Mapping[Any, Any]
    ) -> None:
        self._inputs = inputs
        self._ranges = ranges
        firsts = {shape[0] if shape else 0 for shape in (*inputs.values(), *outputs)}
        first = firsts.pop() if len(firsts) == 1 else 0
        self._rows: Any = None if isinstance(first, int) or len(first.free_symbols) != 1 else first
        """The first dimension of all tensors, an expression of one symbol; None if they differ."""

    @property
    def has_rows(self) -> bool:
        """True if the first dimension of every input and output is the same variable size."""
        return self._rows is not None

    def allows_rows(self, size: int) -> bool:
        """Return True if a batch can have this number of rows."""
        expression, symbol = self._row_expression()
        values = sympy.solve(expression - size, symbol)
        return any(value.is_Integer and self._bounds(symbol).clamp(int(value)) == value for value in values)

    def row_bounds(self) -> Bounds:
        """Return the smallest and largest number of rows."""
        expression, symbol = self._row_expression()
        low, high = self._bounds(symbol)
        return Bounds(
            max(1, int(expression.subs(symbol, low))), None if high is None else int(expression.subs(symbol, high))
        )

    def _row_expression(self) -> tuple[Any, Any]:
        """Return the number of rows as an expression, and its symbol. Call only if there are rows."""
        assert self._rows is not None
        [symbol] = self._rows.free_symbols
        return self._rows, symbol

    def batch_sizes(self, usual: Iterable[int]) -> tuple[int, ...]:
        """Return the usual batch sizes that the program allows, and its bounds if they are between or beyond them."""
        low, high = self.row_bounds()
        usual = tuple(usual)
        sizes = {low, *usual, *([] if high is None or high > usual[-1] else [high])}
        return tuple(size for size in sorted(sizes) if size >= low and self.allows_rows(size))

    def describe_rows(self) -> str:
        """Return the possible numbers of rows as text."""
        low, high = self.row_bounds()
        text = f"at least {low}" if high is None else f"{low} to {high}"
        return text if isinstance(self._rows, sympy.Symbol) else f"{text}, of the form {self._rows}"

    def example_shapes(self, length: int, limit: int) -> dict[str, tuple[int, ...]]:
        """Return input shapes that fit together: every symbol is `length` if its bounds and `limit` permit.

        Rows, and variable sizes of `length`, are -1. `limit`: largest size of a dimension, 0 for none.
        """
        symbols = sorted(
            {symbol for shape in self._inputs.values() for dim in shape for symbol in _symbols(dim)}, key=str
        )
        sizes = {symbol: self._bounds(symbol).clamp(length) for symbol in symbols}
        for symbol in symbols if limit else ():
            while sizes[symbol] > max(0, self._bounds(symbol).low) and self._longest(sizes) > limit:
                sizes[symbol] -= 1
        shapes = {}
        for name, shape in self._inputs.items():
            given = [-1 if _symbols(dim) and _size(dim, sizes) == length else _size(dim, sizes) for dim in shape]
            shapes[name] = (-1, *given[1:]) if self.has_rows else tuple(given)
        return shapes

    def _longest(self, sizes: Mapping[Any, int]) -> int:
        shapes = (shape[self.has_rows :] for shape in self._inputs.values())
        return max((_size(dim, sizes) for shape in shapes for dim in shape if not isinstance(dim, int)), default=0)

    def _bounds(self, symbol: Any) -> Bounds:
        known = self._ranges.get(symbol)
        if known is None:
            return Bounds(0, None)
        return Bounds(max(0, int(known.lower)), int(known.upper) if known.upper.is_Integer else None)


def _symbols(dim: Any) -> Iterable[Any]:
    return () if isinstance(dim, int) else dim.free_symbols


def _size(dim: Any, sizes: Mapping[Any, int]) -> int:
    return dim if isinstance(dim, int) else int(dim.subs(sizes))
