"""Responses of a batch: its output rows, split by the submitter of each row. Pure."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from horologe_common.core.protocol import Out
from horologe_common.status import Status
from horologe_common.wire import Outputs, RowStatus, Tensor
from horologe_common.wire.frames import concat_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_gpu_worker.core.infer_actions import InferAction

Span = tuple[int, int]
"""Rows [begin, end) of a batch."""


def batch_outputs(action: InferAction, status: int, outputs: Sequence[tuple[Tensor, Buffer]], reason: str) -> list[Out]:
    """Build one Outputs message for every submitter of the batch.

    The message holds the submitter's rows in the order of the batch, and a status for each row. If `status` is not
    OK, every row gets it with `reason`, and the message has no tensors.
    """
    begin_ns, end_ns, _ = action.timing
    outs = []
    for submitter, (items, spans) in _split_rows(action, status, reason).items():
        selected = _select_rows(outputs, spans, action.rows, action.spec.batched) if spans else []
        message = Outputs(
            action.infer.action_id,
            tuple(items),
            tuple(tensor for tensor, _ in selected),
            action.infer.model,
            action.batch_size,
            begin_ns,
            end_ns,
        )
        outs.append(Out(submitter, message, [buffer for _, buffer in selected]))
    return outs


def _split_rows(action: InferAction, status: int, reason: str) -> dict[str, tuple[list[RowStatus], list[Span]]]:
    """Return submitter -> (status of its rows, spans of its rows in the batch); adjacent spans are merged."""
    infer = action.infer
    by_submitter: dict[str, tuple[list[RowStatus], list[Span]]] = {}
    offset = 0
    for index, row in enumerate(infer.rows):
        items, spans = by_submitter.setdefault(infer.parties[row.submitter], ([], []))
        if index in action.failed:
            row_status, row_reason = action.failed[index]
            items.append(RowStatus(row.submit_id, 0, int(row_status), row_reason))
            continue
        if status != Status.OK:
            items.append(RowStatus(row.submit_id, 0, int(status), reason))
            continue
        items.append(RowStatus(row.submit_id, row.rows))
        if spans and spans[-1][1] == offset:
            spans[-1] = (spans[-1][0], offset + row.rows)
        else:
            spans.append((offset, offset + row.rows))
        offset += row.rows
    return by_submitter


def _select_rows(
    outputs: Sequence[tuple[Tensor, Buffer]], spans: Sequence[Span], rows: int, batched: bool
) -> Sequence[tuple[Tensor, Buffer]]:
    """Return the rows in `spans` of every output. A single span is a view, not a copy."""
    if not batched or spans == [(0, rows)]:
        return outputs
    return [_select_tensor_rows(tensor, buffer, spans, rows) for tensor, buffer in outputs]


def _select_tensor_rows(tensor: Tensor, buffer: Buffer, spans: Sequence[Span], rows: int) -> tuple[Tensor, Buffer]:
    view = memoryview(buffer)
    if tensor.datatype == "BYTES":
        offsets = _string_offsets(tensor, view)
        slices = [view[offsets[begin] : offsets[end]] for begin, end in spans]
    else:
        size = tensor.nbytes // rows
        slices = [view[begin * size : end * size] for begin, end in spans]
    count = sum(end - begin for begin, end in spans)
    selected = concat_rows(slices)
    return Tensor(tensor.name, tensor.datatype, (count, *tensor.shape[1:]), len(selected)), selected


def _string_offsets(tensor: Tensor, view: memoryview) -> list[int]:
    """Return the byte offset of each row among length-prefixed strings, then the end of the last row."""
    strings_per_row = 1
    for dim in tensor.shape[1:]:
        strings_per_row *= dim
    offsets, offset = [0], 0
    for _ in range(tensor.shape[0]):
        for _ in range(strings_per_row):
            (size,) = struct.unpack_from("<I", view, offset)
            offset += 4 + size
        offsets.append(offset)
    return offsets
