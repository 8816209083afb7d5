"""An INFER action on its way: its rows, which inputs have come, and the operation they make. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from horologe_common.models import DTYPES, check_tensor, check_variable_dimensions
from horologe_common.status import InvalidInput, Status
from horologe_common.wire import RowStatus, Tensor
from horologe_gpu_worker.core.lanes import Operation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec
    from horologe_common.wire import Infer, Ship

RowInputs = list[tuple[Tensor, "Buffer"]]
"""Header and bytes of every input of one row, in the order of the model's signature."""


class Action:
    """One Infer. `waiting` rows have neither inputs nor a failure yet; each row ends with one of the two."""

    __slots__ = (
        "_where",
        "batch_size",
        "cancelled",
        "controller",
        "cut",
        "failed",
        "infer",
        "inputs",
        "lane",
        "ready_ns",
        "rows",
        "spec",
        "timing",
        "waiting",
    )

    def __init__(self, infer: Infer, spec: ModelSpec, controller: str) -> None:
        self.infer = infer
        self.spec = spec
        self.controller = controller
        self.inputs: list[RowInputs | None] = [None] * len(infer.rows)
        self.failed: dict[int, tuple[int, str]] = {}
        self.waiting = len(infer.rows)
        self.ready_ns = 0
        self.lane = ""
        """The lane that has it; empty while it waits for inputs."""
        self.cut = False
        """The window is about to close: go with whatever is there."""
        self.cancelled = False
        self.batch_size = infer.batch_size
        """The compiled size it runs with: smaller than asked for when rows are missing."""
        self.rows = 0
        """True rows of the batch."""
        self.timing = (0, 0, 0)
        """`begin_ns, end_ns, device_ns` of EXEC."""
        self._where: dict[tuple[str, int], list[int]] = {}
        for index, row in enumerate(infer.rows):
            self._where.setdefault((infer.parties[row.holder], row.input_id), []).append(index)

    def wanted(self, ship: Ship, buffers: Sequence[Buffer]) -> Iterator[tuple[int, list[Tensor], Sequence[Buffer]]]:
        """`(row, headers, buffers)` for the rows of `ship` that were still waited for."""
        at = 0
        for item in ship.items:
            end = at + len(item.inputs)
            for index in self._where.get((ship.holder, item.input_id), ()):
                if self.inputs[index] is None and index not in self.failed:
                    yield index, list(item.inputs), buffers[at:end]
            at = end

    def arrived(self, index: int, headers: Sequence[Tensor], buffers: Sequence[Buffer], now_ns: int) -> None:
        """A row's inputs are here. Those that do not fit the signature fail the row, not the batch.

        That is told to the submitter (FAILED): planning it again elsewhere would not help.
        """
        try:
            self.inputs[index] = _in_order(self.spec, self.infer.rows[index].rows, headers, buffers)
        except InvalidInput as error:
            self.failed[index] = (Status.FAILED, error.reason)
        self.waiting -= 1
        self.ready_ns = now_ns

    def lost(self, ship: Ship) -> None:
        """Fail the rows whose inputs the holder says it no longer has."""
        for input_id in ship.missing:
            for index in self._where.get((ship.holder, input_id), ()):
                self.fail(index, Status.MISSING_INPUT, f"{ship.holder} no longer has input {input_id}")

    def fail(self, index: int, status: Status, reason: str) -> None:
        """End a row that was still waited for."""
        if self.inputs[index] is None and index not in self.failed:
            self.failed[index] = (status, reason)
            self.waiting -= 1

    def give_up_waiting(self) -> None:
        """The window closes: rows that are not here are missing."""
        for index, row in enumerate(self.infer.rows):
            self.fail(index, Status.MISSING_INPUT, f"input {row.input_id} had not arrived by the end of the window")

    def operation(self, lane: str) -> Operation | None:
        """The batch of all rows that are here; None if there are none. Padded to the smallest size that holds them."""
        rows = [(index, inputs) for index, inputs in enumerate(self.inputs) if inputs is not None]
        if len(rows) > 1 and self.spec.variable_dimensions and not self.spec.padded:
            rows = self._alike(rows)
        if not rows:
            return None
        infer, spec, self.lane = self.infer, self.spec, lane
        self.rows = sum(infer.rows[index].rows for index, _ in rows)
        if spec.batched and len(rows) < len(infer.rows):
            self.batch_size = spec.compiled_batch_size(self.rows)
        columns = [[inputs[at] for _, inputs in rows] for at in range(len(spec.inputs))]
        shapes = _different(columns) if spec.padded else []
        return Operation(
            infer.action_id,
            infer.share,
            lane,
            infer.model,
            self.batch_size,
            self.rows,
            infer.earliest_ns,
            infer.latest_ns,
            infer.expected_ns,
            [_joined(column, self.rows, spec.batched, bool(shapes)) for column in columns],
            runtime=spec.runtime,
            shapes=shapes,
        )

    def _alike(self, rows: list[tuple[int, RowInputs]]) -> list[tuple[int, RowInputs]]:
        """Rows that can share a batch with the first: equal in variable dimensions. The others can be planned again."""
        first = [tensor.shape[1:] for tensor, _ in rows[0][1]]
        alike = []
        for index, inputs in rows:
            if [tensor.shape[1:] for tensor, _ in inputs] == first:
                alike.append((index, inputs))
            else:
                self.failed[index] = (Status.REFUSED, "its shape differs from that of the batch it was put in")
        return alike

    def not_ok(self) -> tuple[RowStatus, ...]:
        """The rows that failed, by their place in the batch."""
        return tuple(
            RowStatus(index, 0, int(status), reason) for index, (status, reason) in sorted(self.failed.items())
        )


def refusal(infer: Infer, spec: ModelSpec | None, shares: int) -> str:
    """Why the worker cannot take this Infer; empty if it can."""
    if spec is None:
        return f"model {infer.model}: not served by this worker"
    if not 0 <= infer.share < shares:
        return f"share: got {infer.share}, wanted one below {shares}"
    if infer.batch_size not in spec.batch_sizes:
        return f"batch_size: got {infer.batch_size}, wanted one of {list(spec.batch_sizes)}"
    count, parties = 0, len(infer.parties)
    for row in infer.rows:
        if row.rows < 1 or row.holder >= parties or row.submitter >= parties:
            return f"rows: each has at least one row, and parties among the {parties}"
        count += row.rows
    if not infer.rows or count > infer.batch_size or (not spec.batched and len(infer.rows) > 1):
        return f"rows: got {count} in {len(infer.rows)} inputs, wanted 1 to {infer.batch_size}"
    return ""


def _in_order(spec: ModelSpec, rows: int, headers: Sequence[Tensor], buffers: Sequence[Buffer]) -> RowInputs:
    """Headers and bytes in the order of the signature. Raises `InvalidInput` where they do not fit it."""
    given = list(zip(headers, buffers, strict=True))
    if [tensor.name for tensor in headers] != [want.name for want in spec.inputs]:
        given = _by_name(spec, given)
    for want, (got, _) in zip(spec.inputs, given, strict=True):
        if got.datatype != want.datatype or got.shape[1:] != want.shape[1:]:
            check_tensor(want, got.datatype, got.shape)
        if spec.batched and (not got.shape or got.shape[0] != rows):
            raise InvalidInput(f"input {want.name!r}: shape: got {list(got.shape)}, wanted {rows} rows")
    if spec.variable_dimensions:
        check_variable_dimensions(spec, {tensor.name: tensor.shape for tensor, _ in given})
    return given


def _by_name(spec: ModelSpec, given: RowInputs) -> RowInputs:
    names: dict[str, Any] = {entry[0].name: entry for entry in given}
    wanted = [want.name for want in spec.inputs]
    if len(names) != len(given) or sorted(names) != sorted(wanted):
        raise InvalidInput(f"inputs: got {sorted(names)}, wanted {wanted}")
    return [names[name] for name in wanted]


def _joined(parts: RowInputs, count: int, batched: bool, different: bool) -> tuple[Tensor, list[Buffer]]:
    """One header for all rows of an input, as long as the longest where they are `different`, and the rows' bytes."""
    first = parts[0][0]
    buffers = [buffer for _, buffer in parts]
    if len(parts) == 1 or not batched:
        return first, buffers
    shape, size = (count, *first.shape[1:]), sum(map(len, buffers))
    if different:
        shape = (count, *map(max, zip(*(tensor.shape[1:] for tensor, _ in parts), strict=True)))
        size = math.prod(shape) * DTYPES[first.datatype].itemsize if first.datatype in DTYPES else size
    return Tensor(first.name, first.datatype, shape, size), buffers


def _different(columns: Sequence[RowInputs]) -> list[list[tuple[int, ...]]]:
    """The shapes of each input's parts; none where they are all the same but for their rows."""
    shapes = [[tensor.shape for tensor, _ in column] for column in columns]
    return shapes if any(shape[1:] != parts[0][1:] for parts in shapes for shape in parts) else []
