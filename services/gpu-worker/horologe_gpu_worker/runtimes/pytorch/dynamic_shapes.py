"""Variable dimensions of an exported program: which of them count rows, and which sizes they can have together.

A dimension is a number, or an expression of symbols such as `s0 + 1`.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, NamedTuple

import sympy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Dimensions = tuple[int | Any, ...]
    """Sizes, or SymPy expressions for variable sizes."""


TRIED_SIZES = 16
"""Sizes for which two expressions are compared: more than the usual divisors in expressions, such as patch sizes."""


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
        self._outputs = tuple(outputs)
        self._ranges = ranges
        self._rows = self._find_rows([*inputs.values(), *self._outputs])
        """The first dimension of all tensors, an expression of one symbol that no other dimension has. None if there is
        no such dimension.
        """

    def _find_rows(self, shapes: Sequence[Dimensions]) -> Any:
        """Return the rows. Expressions are compared by their values, because PyTorch does not simplify all of them."""
        firsts = [shape[0] if shape else 0 for shape in shapes]
        symbols = {symbol for dim in firsts for symbol in _symbols(dim)}
        if len(symbols) != 1 or not all(map(_symbols, firsts)):
            return None
        [symbol] = symbols
        low = max(1, self._bounds(symbol).low)
        tried = [{symbol: low + more} for more in range(TRIED_SIZES)]
        if any(len({_size(dim, sizes) for dim in firsts}) > 1 for sizes in tried):
            return None
        others = [dim for shape in shapes for dim in shape[1:] if symbol in _symbols(dim)]
        if any(len({_value(dim, sizes) for sizes in tried}) > 1 for dim in others):
            return None
        return firsts[0]

    @property
    def has_rows(self) -> bool:
        """True if all tensors have the same variable size as their first dimension, and no other depends on it."""
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

        Variable sizes of `length` are -1. `limit`: largest size of a dimension except the rows, 0 for none.
        """
        symbols = sorted(
            {symbol for shape in self._inputs.values() for dim in shape for symbol in _symbols(dim)}, key=str
        )
        sizes = {symbol: self._bounds(symbol).clamp(length) for symbol in symbols}
        for symbol in symbols if limit else ():
            sizes[symbol] = self._largest_within(limit, symbol, sizes)
        shapes = {}
        for name, shape in self._inputs.items():
            given = [(_size(dim, sizes), isinstance(dim, int)) for dim in shape]
            shapes[name] = tuple(size if fixed or size != length else -1 for size, fixed in given)
        return shapes

    @property
    def has_known_outputs(self) -> bool:
        """True if the shapes of the outputs follow from those of the inputs, and not from their values."""
        inputs, outputs = (
            {symbol for shape in shapes for dim in shape for symbol in _symbols(dim)}
            for shapes in (self._inputs.values(), self._outputs)
        )
        return outputs <= inputs

    def output_shapes(self, inputs: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Return the shapes of the outputs for shapes of the inputs, in their order.

        Raises ValueError for shapes that the program does not allow. Call only if `has_known_outputs`.
        """
        sizes: dict[Any, int] = {}
        sides = zip(self._inputs.values(), inputs, strict=True)
        given = [pair for dims, shape in sides for pair in zip(dims, shape, strict=True)]
        for dim, size in sorted(given, key=lambda pair: not isinstance(pair[0], sympy.Symbol)):
            if not isinstance(value := _value(dim, sizes), int | sympy.Integer):
                self._solve(value, size, sizes)
        if any(_value(dim, sizes) != size for dim, size in given):
            raise ValueError(f"inputs: got {list(inputs)}, wanted {[list(dims) for dims in self._inputs.values()]}")
        return [tuple(_size(dim, sizes) for dim in shape) for shape in self._outputs]

    def _solve(self, dim: Any, size: int, sizes: dict[Any, int]) -> None:
        """Add the value that the only symbol of a dimension has if the dimension is `size`, if there is one."""
        symbols = _symbols(dim)
        for symbol in symbols if len(symbols) == 1 else ():
            found = [size] if dim == symbol else sympy.solve(dim - size, symbol)
            whole = [int(value) for value in found if sympy.Integer(value) == value]
            if fitting := [value for value in whole if self._bounds(symbol).clamp(value) == value]:
                sizes[symbol] = fitting[0]

    def _largest_within(self, limit: int, symbol: Any, sizes: Mapping[Any, int]) -> int:
        """Return the largest value of a symbol, at most the given one, with which no dimension exceeds `limit`."""
        variable = [
            dim for shape in self._inputs.values() for dim in shape[self.has_rows :] if not isinstance(dim, int)
        ]
        low = self._bounds(symbol).low

        def longest(value: int) -> int:
            return max((_size(dim, {**sizes, symbol: value}) for dim in variable), default=0)

        return low + bisect_right(range(low + 1, sizes[symbol] + 1), limit, key=longest)

    def _bounds(self, symbol: Any) -> Bounds:
        known = self._ranges.get(symbol)
        if known is None:
            return Bounds(0, None)
        return Bounds(max(0, int(known.lower)), int(known.upper) if known.upper.is_Integer else None)


def _symbols(dim: Any) -> set[Any]:
    return set() if isinstance(dim, int) else dim.free_symbols


def _value(dim: Any, sizes: Mapping[Any, int]) -> Any:
    """Return a dimension with these sizes, which may still be an expression."""
    return dim if isinstance(dim, int) else dim.subs(sizes)


def _size(dim: Any, sizes: Mapping[Any, int]) -> int:
    return int(_value(dim, sizes))
