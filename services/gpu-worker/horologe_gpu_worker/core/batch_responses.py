"""The outputs of a batch, given to whoever submitted each row. Pure."""

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
    from horologe_gpu_worker.core.infer_actions import Action

Span = tuple[int, int]
"""Rows [begin, end) of a batch."""


def answers(action: Action, status: int, outputs: Sequence[tuple[Tensor, Buffer]], reason: str) -> list[Out]:
    """One Outputs for every submitter of the batch: its rows in the order of the batch, and what failed.

    With a `status` other than OK all rows have it, and there are no tensors.
    """
    by_submitter = _by_submitter(action, status, reason)
    begin_ns, end_ns, _ = action.timing
    outs = []
    for submitter, (items, spans) in by_submitter.items():
        parts = _cut(outputs, spans, action.rows, action.spec.batched) if spans else []
        message = Outputs(
            action.infer.action_id,
            tuple(items),
            tuple(tensor for tensor, _ in parts),
            action.infer.model,
            action.batch_size,
            begin_ns,
            end_ns,
        )
        outs.append(Out(submitter, message, [buffer for _, buffer in parts]))
    return outs


def _by_submitter(action: Action, status: int, reason: str) -> dict[str, tuple[list[RowStatus], list[Span]]]:
    infer = action.infer
    found: dict[str, tuple[list[RowStatus], list[Span]]] = {}
    at = 0
    for index, row in enumerate(infer.rows):
        items, spans = found.setdefault(infer.parties[row.submitter], ([], []))
        if index in action.failed:
            row_status, row_reason = action.failed[index]
            items.append(RowStatus(row.submit_id, 0, int(row_status), row_reason))
            continue
        if status != Status.OK:
            items.append(RowStatus(row.submit_id, 0, int(status), reason))
            continue
        items.append(RowStatus(row.submit_id, row.rows))
        if spans and spans[-1][1] == at:
            spans[-1] = (spans[-1][0], at + row.rows)
        else:
            spans.append((at, at + row.rows))
        at += row.rows
    return found


def _cut(
    outputs: Sequence[tuple[Tensor, Buffer]], spans: Sequence[Span], rows: int, batched: bool
) -> Sequence[tuple[Tensor, Buffer]]:
    """The rows in `spans` of every output; not copied where they are one piece."""
    if not batched or spans == [(0, rows)]:
        return outputs
    return [_cut_one(tensor, buffer, spans, rows) for tensor, buffer in outputs]


def _cut_one(tensor: Tensor, buffer: Buffer, spans: Sequence[Span], rows: int) -> tuple[Tensor, Buffer]:
    view = memoryview(buffer)
    if tensor.datatype == "BYTES":
        at = _string_offsets(tensor, view)
        parts = [view[at[begin] : at[end]] for begin, end in spans]
    else:
        size = tensor.nbytes // rows
        parts = [view[begin * size : end * size] for begin, end in spans]
    count = sum(end - begin for begin, end in spans)
    mine = concat_rows(parts)
    return Tensor(tensor.name, tensor.datatype, (count, *tensor.shape[1:]), len(mine)), mine


def _string_offsets(tensor: Tensor, view: memoryview) -> list[int]:
    """Where each row begins among length-prefixed strings, and where the last one ends."""
    per_row = 1
    for dim in tensor.shape[1:]:
        per_row *= dim
    offsets, at = [0], 0
    for _ in range(tensor.shape[0]):
        for _ in range(per_row):
            (size,) = struct.unpack_from("<I", view, at)
            at += 4 + size
        offsets.append(at)
    return offsets
