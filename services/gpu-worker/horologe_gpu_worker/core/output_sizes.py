"""Sizes of output messages: a batch's outputs are divided so that the receiver of each message accepts it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.status import Status
from horologe_common.wire import RowStatus
from horologe_common.wire.frames import split_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.wire import Tensor


class RowSegment:
    """Consecutive rows of a batch. Rows of a segment without `fits` are not sent."""

    def __init__(self, fits: bool) -> None:
        self.fits = fits
        self.items: list[RowStatus] = []
        self.rows = self.size = 0

    def append(self, item: RowStatus, rows: int, size: int) -> None:
        self.items.append(item)
        self.rows += rows
        self.size += size


def divide_outputs(
    items: Sequence[RowStatus], outputs: Sequence[tuple[Tensor, Buffer]], limit: int, batched: bool
) -> list[tuple[Sequence[RowStatus], Sequence[tuple[Tensor, Buffer]]]]:
    """Divide outputs of more than `limit` bytes: return items and tensors of each message to a submitter.

    A request whose outputs alone exceed the limit gets TOO_LARGE, and no outputs. The others are answered as usual.
    """
    counts = [item.rows for item in items if item.status == Status.OK]
    if batched:
        parts = [split_rows(tensor, buffer, counts) for tensor, buffer in outputs]
        sizes = [sum(len(part) for _, part in request) for request in zip(*parts, strict=True)]
    else:
        sizes = [sum(len(buffer) for _, buffer in outputs)]
    segments = _divide(items, sizes, limit)
    without = [item for item in items if item.status != Status.OK]
    without += [item for segment in segments if not segment.fits for item in segment.items]
    sent = [segment for segment in segments if segment.fits]
    if not sent:
        return [(without, ())]
    rows = [segment.rows for segment in segments]
    columns = [split_rows(tensor, buffer, rows) for tensor, buffer in outputs]
    tensors = [part for part, segment in zip(zip(*columns, strict=True), segments, strict=True) if segment.fits]
    sent[0].items += without
    return [(segment.items, part) for segment, part in zip(sent, tensors, strict=True)]


def _divide(items: Iterable[RowStatus], sizes: Iterable[int], limit: int) -> list[RowSegment]:
    """Return the segments of the rows that have outputs, in their order."""
    segments: list[RowSegment] = []
    for item, size in zip((item for item in items if item.status == Status.OK), sizes, strict=True):
        fits = size <= limit
        if not segments or segments[-1].fits != fits or segments[-1].size + size > limit:
            segments.append(RowSegment(fits))
        if fits:
            segments[-1].append(item, item.rows, size)
        else:
            reason = f"outputs: got {size} bytes, wanted at most {limit} (links.max_frame_bytes)"
            segments[-1].append(RowStatus(item.id, 0, int(Status.TOO_LARGE), reason), item.rows, size)
    return segments
