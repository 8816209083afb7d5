"""Responses of INFER actions: each submitter gets its rows of a batch's outputs, in messages that it accepts. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.core.protocol import UNLIMITED, Out
from horologe_common.status import Status
from horologe_common.wire import Outputs, RowStatus, Tensor
from horologe_common.wire.frames import concat_rows, split_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_gpu_worker.core.infer_actions import InferAction

    Span = tuple[int, int]
    """Rows [begin, end) of a batch."""


def batch_outputs(
    action: InferAction,
    status: int,
    outputs: Sequence[tuple[Tensor, Buffer]],
    reason: str,
    content_hash: str,
    frame_limits: Mapping[str, int],
) -> list[Out]:
    """Build the Outputs for every submitter of the batch: one message, unless its bytes exceed `frame_limits`.

    The messages hold the submitter's rows in the order of the batch, and a status for each row. If `status` is not
    OK, every row gets it with `reason`, and the message has no tensors.
    """
    (begin_ns, end_ns, _), batched = action.timing, action.spec.batched
    outs = []
    for submitter, (rows, spans) in _split_rows(action, status, reason).items():
        selected = _select_rows(outputs, spans, action.rows, batched) if spans else []
        limit = frame_limits.get(submitter, UNLIMITED)
        fits = sum(len(buffer) for _, buffer in selected) <= limit
        for items, tensors in ((rows, selected),) if fits else divide_outputs(rows, selected, limit, batched):
            message = Outputs(
                action.infer.action_id,
                tuple(items),
                tuple(tensor for tensor, _ in tensors),
                action.infer.model,
                action.batch_size,
                begin_ns,
                end_ns,
                content_hash,
                action.infer.slowness,
                action.infer.share,
            )
            outs.append(Out(submitter, message, [buffer for _, buffer in tensors]))
    return outs


def _split_rows(action: InferAction, status: int, reason: str) -> dict[str, tuple[list[RowStatus], list[Span]]]:
    """Return submitter -> (status of its rows, spans of its rows in the batch); adjacent spans are merged."""
    infer = action.infer
    if status == Status.OK and not action.failed and len({row.submitter for row in infer.rows}) == 1:
        items = [RowStatus(row.submit_id, row.rows, more=action.more) for row in infer.rows]
        return {infer.parties[infer.rows[0].submitter]: (items, [(0, action.rows)])}
    by_submitter: dict[str, tuple[list[RowStatus], list[Span]]] = {}
    offset = 0
    for index, row in enumerate(infer.rows):
        items, spans = by_submitter.setdefault(infer.parties[row.submitter], ([], []))
        if index in action.failed:
            row_status, row_reason = action.failed[index]
            items.append(RowStatus(row.submit_id, 0, int(row_status), row_reason))
            if index in action.started:  # the outputs have rows for it
                offset += row.rows
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
    counts, end = [], 0
    for span in spans:
        counts += [span[0] - end, span[1] - span[0]]
        end = span[1]
    selected = []
    for tensor, buffer in outputs:
        rows_bytes = concat_rows(part for _, part in split_rows(tensor, buffer, counts)[1::2])
        shape = (sum(counts[1::2]), *tensor.shape[1:])
        selected.append((Tensor(tensor.name, tensor.datatype, shape, len(rows_bytes)), rows_bytes))
    return selected


def divide_outputs(
    items: Sequence[RowStatus], outputs: Sequence[tuple[Tensor, Buffer]], limit: int, batched: bool
) -> list[tuple[Sequence[RowStatus], Sequence[tuple[Tensor, Buffer]]]]:
    """Divide outputs of more than `limit` bytes: return items and tensors of each message to a submitter.

    A request whose outputs alone exceed the limit gets TOO_LARGE, and no outputs. The others are answered as usual.
    """
    answered = [item for item in items if item.status == Status.OK]
    without = [item for item in items if item.status != Status.OK]
    segments: list[tuple[bool, list[RowStatus]]] = []  # consecutive requests, and whether they are sent
    segment_size = 0
    for item, size in zip(answered, _output_sizes(answered, outputs, batched), strict=True):
        fits = size <= limit
        if not fits:
            reason = f"outputs: got {size} bytes, wanted at most {limit} (links.max_frame_bytes)"
            without.append(RowStatus(item.id, 0, int(Status.TOO_LARGE), reason))
        if not segments or segments[-1][0] != fits or segment_size + size > limit:
            segments.append((fits, []))
            segment_size = 0
        segments[-1][1].append(item)
        segment_size += size
    if not any(fits for fits, _ in segments):
        return [(without, ())]
    rows = [sum(item.rows for item in segment) for _, segment in segments]
    columns = [split_rows(tensor, buffer, rows) for tensor, buffer in outputs]
    tensors = zip(*columns, strict=True)
    messages = [(segment, part) for (fits, segment), part in zip(segments, tensors, strict=True) if fits]
    messages[0][0].extend(without)
    return list(messages)


def _output_sizes(answered: Sequence[RowStatus], outputs: Sequence[tuple[Tensor, Buffer]], batched: bool) -> list[int]:
    """Return the bytes of the outputs of each request."""
    if not batched:
        return [sum(len(buffer) for _, buffer in outputs)]
    parts = [split_rows(tensor, buffer, [item.rows for item in answered]) for tensor, buffer in outputs]
    return [sum(len(part) for _, part in request) for request in zip(*parts, strict=True)]
