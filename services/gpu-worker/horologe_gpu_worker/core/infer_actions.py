"""INFER actions: memory for their inputs, inputs that come before them, their rows, their operation. Pure."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import TYPE_CHECKING

from horologe_common.models import DTYPES, check_input_names, check_tensor, check_variable_dimensions
from horologe_common.status import InvalidInput, Status, TooLarge
from horologe_common.string_tensors import check_strings
from horologe_common.wire import RowStatus, Tensor
from horologe_gpu_worker.core.lanes import LaneOperation
from horologe_gpu_worker.core.stream_step import Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec
    from horologe_common.wire import Infer, Ship

RowInputs = list[tuple[Tensor, "Buffer"]]
"""Header and bytes of every input of one row, in the order of the model's signature."""

EARLY_ACTIONS, EARLY_BYTES = 1024, 128 << 20
"""Maximum number of actions, and bytes, of inputs that are held before their Infer arrives."""
FINISHED_IDS_MAX = 1024
"""Ids of finished actions that are remembered, so that their late inputs are dropped instead of held."""


class IoCache:
    """Byte accounting of accepted actions, as in Clockwork's IOCache (section 5.2).

    Invariant: `held_bytes` is the sum over all actions and at most `limit_bytes`.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._held: dict[int, int] = {}

    def acquire(self, action_id: int, size: int) -> bool:
        """Add `size` bytes to the action. Return False and add nothing if the sum would exceed the limit."""
        if self.held_bytes + size > self.limit_bytes:
            return False
        self.held_bytes += size
        self._held[action_id] = self._held.get(action_id, 0) + size
        return True

    def release(self, action_id: int) -> None:
        """Subtract all bytes of the action."""
        self.held_bytes -= self._held.pop(action_id, 0)

    def check(self) -> None:
        assert self.held_bytes == sum(self._held.values()) <= self.limit_bytes


class EarlyInputs:
    """Ships that arrived before their Infer, by action id: the two messages travel over different sockets.

    Holds at most `max_actions` actions and `limit_bytes` bytes; beyond that the oldest inputs are dropped.
    Invariant: `held_bytes` is the sum over the held inputs and at most `limit_bytes`.
    """

    def __init__(self, max_actions: int = EARLY_ACTIONS, limit_bytes: int = EARLY_BYTES) -> None:
        self.max_actions = max_actions
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self.dropped = 0
        self._held: dict[int, list[tuple[Ship, Sequence[Buffer]]]] = {}
        self._finished_ids: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, action_id: int) -> bool:
        return action_id in self._held

    def hold_inputs(self, ship: Ship, buffers: Sequence[Buffer]) -> list[int]:
        """Hold the inputs, or drop them if their action has finished or they exceed the limit.

        Returns the ids of the actions whose inputs were dropped to make room.
        """
        size = sum(map(len, buffers))
        if ship.action_id in self._finished_ids or size > self.limit_bytes:
            self.dropped += 1
            return []
        evicted = []
        others = [action_id for action_id in self._held if action_id != ship.action_id]
        while others and (self.held_bytes + size > self.limit_bytes or self._is_full(ship.action_id)):
            evicted.append(others.pop(0))
            self.drop_inputs(evicted[-1])
        if self.held_bytes + size > self.limit_bytes:
            self.dropped += 1
            return evicted
        self._held.setdefault(ship.action_id, []).append((ship, buffers))
        self.held_bytes += size
        return evicted

    def pop_inputs(self, action_id: int) -> list[tuple[Ship, Sequence[Buffer]]]:
        """Remove and return the inputs of an action that has arrived."""
        ships = self._held.pop(action_id, [])
        self.held_bytes -= sum(len(buffer) for _, buffers in ships for buffer in buffers)
        return ships

    def drop_inputs(self, action_id: int) -> None:
        """Drop inputs whose action did not arrive in time, and count them."""
        self.dropped += len(self.pop_inputs(action_id))

    def mark_finished(self, action_id: int) -> None:
        """Remember an action that finished without all of its inputs: later inputs for it are dropped."""
        self._finished_ids[action_id] = None
        if len(self._finished_ids) > FINISHED_IDS_MAX:
            del self._finished_ids[next(iter(self._finished_ids))]

    def clear_finished(self) -> None:
        """Discard the finished ids. A new controller numbers its actions independently of the lost one."""
        self._finished_ids.clear()

    def check(self) -> None:
        held = sum(len(buffer) for ships in self._held.values() for _, buffers in ships for buffer in buffers)
        assert self.held_bytes == held <= self.limit_bytes
        assert len(self._held) <= self.max_actions

    def _is_full(self, action_id: int) -> bool:
        return action_id not in self._held and len(self._held) >= self.max_actions


class InferAction:
    """An INFER action. `awaited` counts the rows that have neither inputs nor a failure yet."""

    def __init__(self, infer: Infer, spec: ModelSpec, controller: str) -> None:
        self.infer = infer
        self.spec = spec
        self.controller = controller
        self.inputs: list[RowInputs | None] = [None] * len(infer.rows)
        self.failed: dict[int, tuple[int, str]] = {}
        self.awaited = len(infer.rows)
        first = infer.rows[0]
        self.step = Step(infer.parties[first.submitter], first.stream, first.step) if first.stream else None
        if self.step is not None and self.step.number > 1:  # the model has its state, and the step no inputs
            self.inputs, self.awaited = [[]], 0
        self.more = False
        """After a step of a stream: more items may follow."""
        self.ready_ns = 0
        self.lane = ""
        """The lane that holds the action's operation; empty while the action waits for inputs."""
        self.inline_io = True
        """True if INPUT and OUTPUT are part of EXEC. Decided at the start of the action: the model may be replaced."""
        self.start_partial = False
        """True when the window is about to close: start with the rows whose inputs have arrived."""
        self.cancelled = False
        self.batch_size = infer.batch_size
        """The compiled batch size to run. Smaller than `infer.batch_size` if rows are missing."""
        self.rows = 0
        """Rows of the batch without padding."""
        self.started: Sequence[int] = ()
        """Indices of the rows that the batch holds, once it is built."""
        self.timing = (0, 0, 0)
        """`begin_ns, end_ns, device_ns` of the EXEC operation."""
        self.lanes_end_ns: tuple[int, ...] = ()
        """Ends of INPUT and OUTPUT, if the model has these lanes."""
        self._rows_by_input: dict[tuple[str, int], list[int]] | None = None

    def match_ship(self, ship: Ship) -> list[tuple[int, int]]:
        """Return `(row index, index of its item in the Ship)` for the rows of `ship` that are still awaited."""
        rows, items = self.infer.rows, ship.items
        if self.awaited == len(rows) and [row.input_id for row in rows] == [item.input_id for item in items]:
            holders = {row.holder for row in rows}
            if len(holders) == 1 and self.infer.parties[holders.pop()] == ship.holder:
                return [(index, index) for index in range(len(rows))]  # the usual case: all rows, in order
        return [
            (index, number)
            for number, item in enumerate(items)
            for index in self._rows_with_input(ship.holder, item.input_id)
            if self.inputs[index] is None and index not in self.failed
        ]

    def store_inputs(self, ship: Ship, buffers: Sequence[Buffer], now_ns: int) -> None:
        """Store the inputs of all awaited rows of `ship`.

        Inputs that do not fit the signature fail their row, not the batch. They fail it as FAILED, which goes to the
        submitter: another worker would reject the same inputs.
        """
        infer_rows, inputs, items = self.infer.rows, self.inputs, ship.items
        ends = [0, *accumulate([len(item.inputs) for item in items])]
        checked: tuple[tuple[Tensor, ...], int] | None = None
        for index, number in self.match_ship(ship):
            headers, rows = items[number].inputs, infer_rows[index].rows
            row_buffers = buffers[ends[number] : ends[number + 1]]
            try:
                if self.spec.has_string_inputs:  # strings that cannot be decoded would fail the batch
                    check_strings(self.spec, headers, row_buffers)
                if checked == (headers, rows):
                    inputs[index] = list(zip(headers, row_buffers, strict=True))
                else:
                    ordered = inputs[index] = _order_inputs(self.spec, rows, headers, row_buffers)
                    checked = tuple([tensor for tensor, _ in ordered]), rows
            except (InvalidInput, TooLarge) as error:
                self.failed[index] = (Status.FAILED, error.reason)
            self.awaited -= 1
            self.ready_ns = now_ns

    def fail_ship(self, ship: Ship, reason: str) -> None:
        """Fail all awaited rows of `ship` as MISSING_INPUT."""
        for index, _ in self.match_ship(ship):
            self.fail_row(index, Status.MISSING_INPUT, reason)

    def fail_missing_inputs(self, ship: Ship) -> None:
        """Fail the rows whose inputs the holder reports as missing."""
        for input_id in ship.missing:
            for index in self._rows_with_input(ship.holder, input_id):
                self.fail_row(index, Status.MISSING_INPUT, f"{ship.holder} no longer has input {input_id}")

    def _rows_with_input(self, holder: str, input_id: int) -> Sequence[int]:
        if self._rows_by_input is None:
            self._rows_by_input = {}
            for index, row in enumerate(self.infer.rows):
                self._rows_by_input.setdefault((self.infer.parties[row.holder], row.input_id), []).append(index)
        return self._rows_by_input.get((holder, input_id), ())

    def fail_row(self, index: int, status: Status, reason: str) -> None:
        """Fail a row that is still awaited."""
        if self.inputs[index] is None and index not in self.failed:
            self.failed[index] = (status, reason)
            self.awaited -= 1

    def fail_awaited_rows(self) -> None:
        """Fail all awaited rows as MISSING_INPUT, because the window closes."""
        for index, row in enumerate(self.infer.rows if self.awaited else ()):
            self.fail_row(index, Status.MISSING_INPUT, f"input {row.input_id} had not arrived by the end of the window")

    def build_operation(self, lane: str) -> LaneOperation | None:
        """Build the operation for `lane` from the rows that have inputs; None if no row has inputs.

        The batch is padded to the smallest compiled size that holds the rows.
        """
        rows = [(index, inputs) for index, inputs in enumerate(self.inputs) if inputs is not None]
        if len(rows) > 1 and (self.spec.optional or (self.spec.variable_dimensions and not self.spec.padded)):
            rows = self._select_same_shape(rows)
        if not rows:
            return None
        infer, spec, self.lane = self.infer, self.spec, lane
        self.started = [index for index, _ in rows]
        request_rows = [infer.rows[index].rows for index in self.started]
        self.rows = sum(request_rows)
        if spec.batched and len(rows) < len(infer.rows):
            self.batch_size = spec.compiled_batch_size(self.rows)
        columns = [[inputs[column] for _, inputs in rows] for column in range(len(rows[0][1]))]
        shapes = _differing_shapes(columns) if spec.padded else []
        return LaneOperation(
            infer.action_id,
            infer.share,
            lane,
            infer.model,
            self.batch_size,
            self.rows,
            infer.earliest_ns,
            infer.latest_ns,
            infer.expected_ns,
            [_concatenate_rows(column, self.rows, spec.batched, bool(shapes)) for column in columns],
            spec=spec,
            shapes=shapes,
            step=self.step,
            request_rows=request_rows,
        )

    def _select_same_shape(self, rows: list[tuple[int, RowInputs]]) -> list[tuple[int, RowInputs]]:
        """Return the rows whose inputs and variable dimensions equal those of the first row, and refuse the others.

        REFUSED goes to the controller, which can plan the other rows again.
        """
        padded = self.spec.padded
        shapes = [[(tensor.name, () if padded else tensor.shape[1:]) for tensor, _ in inputs] for _, inputs in rows]
        same_shape = []
        for (index, inputs), shape in zip(rows, shapes, strict=True):
            if shape == shapes[0]:
                same_shape.append((index, inputs))
            else:
                self.failed[index] = (Status.REFUSED, "the inputs or their shapes differ from those of the batch")
        return same_shape

    def fail_started_rows(self, failed: Iterable[tuple[int, str]]) -> None:
        """Fail rows of the batch that has run, by their indexes in the batch, each with a reason."""
        for number, reason in failed:
            self.failed[self.started[number]] = (Status.FAILED, reason)

    def failed_rows(self) -> tuple[RowStatus, ...]:
        """Return the status of every failed row; `submit_id` is the row's index in the batch."""
        return tuple(
            RowStatus(index, 0, int(status), reason) for index, (status, reason) in sorted(self.failed.items())
        )


def _order_inputs(spec: ModelSpec, rows: int, headers: Sequence[Tensor], buffers: Sequence[Buffer]) -> RowInputs:
    """Return headers and bytes in the order of the signature. Raises `InvalidInput` if they do not fit it."""
    inputs = list(zip(headers, buffers, strict=True))
    if (names := [tensor.name for tensor in headers]) != [want.name for want in spec.inputs]:
        check_input_names(spec, names)
        given = dict(zip(names, inputs, strict=True))
        inputs = [given[want.name] for want in spec.inputs if want.name in given]
    first, wanted = int(spec.batched), spec.inputs
    if len(inputs) < len(wanted):
        wanted = tuple(want for want in wanted if want.name in names)
    for want, (got, _) in zip(wanted, inputs, strict=True):
        if got.datatype != want.datatype or got.shape[first:] != want.shape[first:]:
            check_tensor(want, got.datatype, got.shape)
        if spec.batched and (not got.shape or got.shape[0] != rows):
            raise InvalidInput(f"input {want.name!r}: shape: got {list(got.shape)}, wanted {rows} rows")
    if spec.variable_dimensions:
        check_variable_dimensions(spec, {tensor.name: tensor.shape for tensor, _ in inputs})
    return inputs


def _concatenate_rows(parts: RowInputs, count: int, batched: bool, different: bool) -> tuple[Tensor, list[Buffer]]:
    """Return one header for all rows of an input, and the bytes of each row.

    If the shapes are `different`, the header has the size of the longest row in every dimension.
    """
    first = parts[0][0]
    buffers = [buffer for _, buffer in parts]
    if len(parts) == 1 or not batched:
        return first, buffers
    shape, size = (count, *first.shape[1:]), sum(map(len, buffers))
    if different:
        shape = (count, *map(max, zip(*(tensor.shape[1:] for tensor, _ in parts), strict=True)))
        size = math.prod(shape) * DTYPES[first.datatype].itemsize if first.datatype in DTYPES else size
    return Tensor(first.name, first.datatype, shape, size), buffers


def _differing_shapes(columns: Sequence[RowInputs]) -> list[list[tuple[int, ...]]]:
    """Return the shape of every row by input; empty if all rows of every input have the same shape."""
    shapes = [[tensor.shape for tensor, _ in column] for column in columns]
    return shapes if any(shape[1:] != parts[0][1:] for parts in shapes for shape in parts) else []
