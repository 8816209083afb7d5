"""Tensor summaries: what a recording keeps of a tensor. Usually its size; of a prediction, as much as decisions need.

A selector with applications decides by predictions, one per row. Of numbers the summary holds the numbers. Of scores
it holds the index of the largest in each row, from which a replay makes scores with the same maximum. Example: scores
[[0.1, 0.7, 0.2]] are summarised as (1,) and replayed as [[0, 1, 0]].
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import msgspec
import numpy as np

from horologe_common.models import DTYPES
from horologe_common.wire.frames import decode_array, tensors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.wire import AnyMessage, Tensor

TensorSummary: TypeAlias = int | bytes | tuple[int, ...]
"""A size in bytes; or all bytes of numbers; or the index of the largest score of each row, -1 if a score is NaN."""
MAX_ROWS = 1024
"""Limit of rows. Of a larger tensor only the size is kept. Batches are smaller."""


class TensorSummaries(msgspec.Struct, frozen=True):
    """Summaries of several tensors, as part of a core's snapshot."""

    parts: tuple[TensorSummary, ...]
    whole: ClassVar[bool] = True


def summarize_tensor(tensor: Tensor, buffer: Buffer) -> TensorSummary:
    """Return bytes for numbers [rows] or [rows, 1], indices for scores [rows, classes], else the size."""
    shape, size = tensor.shape, len(buffer)
    if not size or tensor.datatype == "BYTES" or len(shape) not in (1, 2) or shape[0] > MAX_ROWS:
        return size
    if len(shape) == 1 or shape[1] == 1:
        return bytes(buffer)
    scores = decode_array(tensor, buffer)
    places = scores.argmax(axis=1)
    if scores.dtype.kind == "f":
        places[np.isnan(scores).any(axis=1)] = -1
    return tuple(places.tolist())


def expand_summary(tensor: Tensor, outline: TensorSummary) -> Buffer:
    """Return bytes of a tensor with this summary. Scores are 0, the largest of each row 1."""
    if isinstance(outline, int):
        return placeholder(tensor, outline)
    if isinstance(outline, bytes):
        return outline
    scores = np.zeros(tensor.shape, DTYPES[tensor.datatype])
    for row, place in enumerate(outline):
        scores[row, place] = 1 if place >= 0 else np.nan
    return scores.tobytes()


def placeholder(tensor: Tensor, size: int) -> bytes:
    """Return `size` bytes that a core accepts for the tensor: zeros, or strings of zeros, all in the first one."""
    count = math.prod(tensor.shape)
    if tensor.datatype != "BYTES" or not count or size < 4 * count:
        return bytes(size)
    return (size - 4 * count).to_bytes(4, "little") + bytes(size - 4)


def summarize_tensors(message: AnyMessage, buffers: Sequence[Buffer]) -> tuple[TensorSummary, ...]:
    """Return the summaries of the tensors of a message."""
    return tuple(summarize_tensor(tensor, buffer) for tensor, buffer in zip(tensors(message), buffers, strict=True))


def expand_summaries(message: AnyMessage, outlines: Sequence[TensorSummary]) -> list[Buffer]:
    """Return bytes for the tensors of a message that have these summaries."""
    return [expand_summary(tensor, one) for tensor, one in zip(tensors(message), outlines, strict=True)]
