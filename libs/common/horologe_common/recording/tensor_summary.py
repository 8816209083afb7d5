"""What a recording has of a tensor: its size, or, of what a model predicts, as little as says the same.

A selector with applications decides by predictions, one for each row. Of numbers these are the numbers, of scores the
place of the largest: that is kept, and replaces the scores when the recording is replayed. Inputs are sizes always.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, TypeAlias

import msgspec
import numpy as np

from horologe_common.models import DTYPES
from horologe_common.wire import tensors
from horologe_common.wire.frames import decode_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.wire import AnyMessage, Tensor

TensorSummary: TypeAlias = "int | bytes | tuple[int, ...]"
"""A size in bytes; numbers, all of their bytes; or for each row the place of the largest score, -1 where there is
none because one is not a number."""
ROWS = 1024
"""More have no outline but their size. Batches are smaller."""


class TensorSummaries(msgspec.Struct, frozen=True):
    """Of several tensors, as a part of a core's snapshot."""

    parts: tuple[TensorSummary, ...]
    whole: ClassVar[bool] = True


def summarize_tensor(tensor: Tensor, buffer: Buffer) -> TensorSummary:
    """Of numbers [rows] or [rows, 1] the bytes, of scores [rows, classes] the places; of everything else the size."""
    shape, size = tensor.shape, len(buffer)
    if not size or tensor.datatype == "BYTES" or len(shape) not in (1, 2) or shape[0] > ROWS:
        return size
    if len(shape) == 1 or shape[1] == 1:
        return bytes(buffer)
    scores = decode_array(tensor, buffer)
    places = scores.argmax(axis=1)
    if scores.dtype.kind == "f":
        places[np.isnan(scores).any(axis=1)] = -1
    return tuple(places.tolist())


def expand_summary(tensor: Tensor, outline: TensorSummary) -> Buffer:
    """Bytes of a tensor with this outline: zeros, but for the largest scores, which are 1."""
    if isinstance(outline, int):
        return bytes(outline)
    if isinstance(outline, bytes):
        return outline
    scores = np.zeros(tensor.shape, DTYPES[tensor.datatype])
    for row, place in enumerate(outline):
        scores[row, place] = 1 if place >= 0 else np.nan
    return scores.tobytes()


def summarize_tensors(message: AnyMessage, buffers: Sequence[Buffer]) -> tuple[TensorSummary, ...]:
    """Of the tensors of a message."""
    return tuple(summarize_tensor(tensor, buffer) for tensor, buffer in zip(tensors(message), buffers, strict=True))


def expand_summaries(message: AnyMessage, outlines: Sequence[TensorSummary]) -> list[Buffer]:
    """The opposite."""
    return [expand_summary(tensor, one) for tensor, one in zip(tensors(message), outlines, strict=True)]
