"""One row of a request, and a batch of it repeated. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.wire import Tensor
from horologe_common.wire.frames import split_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer

Row = tuple[tuple[Tensor, ...], list[bytes]]
"""Headers and bytes of its tensors."""


def first_row(inputs: Sequence[Tensor], buffers: Sequence[Buffer], rows: int) -> Row:
    """The first of `rows` rows. Copied: what it came with is not kept along with it."""
    found = [
        split_rows(tensor, buffer, [1])[0] if rows > 1 else (tensor, buffer)
        for tensor, buffer in zip(inputs, buffers, strict=True)
    ]
    return tuple(tensor for tensor, _ in found), [bytes(buffer) for _, buffer in found]


def repeated(inputs: Sequence[Tensor], buffers: Sequence[Buffer], times: int) -> Row:
    """A batch of that one row."""
    headers = tuple(Tensor(one.name, one.datatype, (times, *one.shape[1:]), one.nbytes * times) for one in inputs)
    return headers, [bytes(buffer) * times for buffer in buffers]
