"""Harness of worker tests: a worker core, its messages, and lanes that compute `y` = sum of `x` per row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from harness.builders import a_report, a_spec
from horologe_common.clock import ms
from horologe_common.core.protocol import Out, PeerConnected, PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import Infer, Load, Outputs, Register, Result, Row, Ship, Shipped, Unload
from horologe_common.wire.frames import encode_array
from horologe_gpu_worker.core.lanes import Finished, LaneOperation
from horologe_gpu_worker.core.worker import Worker
from horologe_gpu_worker.execution.batching import assemble_inputs, output_tensors
from horologe_gpu_worker.execution.workspace import Workspace
from horologe_gpu_worker.settings import WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec

CONTROLLER = "controller/0#a"
HOLDER = "frontend/0#a"
SELECTOR = "selector/0#a"
MODEL = "sum/1"
PAGE = 16 << 20


def a_worker(inline: bool = True, specs: Sequence[ModelSpec] = (), **settings: Any) -> Worker:
    reports = [a_report(spec) for spec in specs or (a_spec(),)]
    return Worker("worker/0#w", WorkerSettings(**settings), reports, lambda _: inline)


def connect_controller(worker: Worker, controller: str = CONTROLLER) -> list[Out]:
    return deliver(worker, 0, controller, PeerConnected(controller))


def deliver(worker: Worker, now_ns: int, sender: str, message: Any, buffers: Sequence[Buffer] = ()) -> list[Out]:
    """Deliver a message, tick and check. Returns the worker's output."""
    worker.handle(now_ns, sender, message, buffers)
    return tick_worker(worker, now_ns)


def tick_worker(worker: Worker, now_ns: int) -> list[Out]:
    worker.tick(now_ns)
    worker.check()
    outs, worker.out = worker.out, []
    return outs


def an_infer(
    action_id: int = 1,
    rows: Sequence[int] = (1,),
    batch_size: int = 0,
    window: tuple[int, int] = (0, ms(10)),
    model: str = MODEL,
    parties: tuple[str, ...] = (HOLDER, SELECTOR),
    entries: tuple[Row, ...] = (),
    share: int = 0,
) -> Infer:
    """Build an Infer with `rows[i]` rows of input 100 + i at HOLDER, for submission 200 + i of SELECTOR, or with
    `entries`.
    """
    entries = entries or tuple(Row(0, 100 + at, 1, 200 + at, count) for at, count in enumerate(rows))
    batch_size = batch_size or a_spec().compiled_batch_size(sum(entry.rows for entry in entries))
    return Infer(action_id, share, model, batch_size, entries, parties, *window, expected_ns=ms(1))


def an_input(values: Sequence[float]) -> np.ndarray[Any, Any]:
    """Build an input with a row of `x` per value; the sum of the row is the value."""
    return np.array([[value, 0, 0, 0] for value in values], np.float32)


def a_ship(
    items: Mapping[int, Sequence[float]], action_id: int = 1, missing: tuple[int, ...] = (), holder: str = HOLDER
) -> tuple[Ship, list[Buffer]]:
    """Build a Ship of inputs by id, with values per row, and their bytes."""
    shipped, buffers = [], []
    for input_id, values in items.items():
        header, buffer = encode_array("x", an_input(values))
        shipped.append(Shipped(input_id, (header,)))
        buffers.append(buffer)
    return Ship(action_id, holder, tuple(shipped), missing), buffers


def run_operation(operation: LaneOperation, begin_ns: int = 5, spec: ModelSpec | None = None) -> Finished:
    """Return the Finished message of a lane that has computed the sum of each row."""
    space = Workspace()
    x = assemble_inputs(operation, True, space)["x"]
    assert x.shape == (operation.batch_size, 4)
    outputs = output_tensors(operation, spec or a_spec(), {"y": x.sum(1, keepdims=True)}, space)
    return Finished(operation.action_id, "exec", Status.OK, begin_ns, begin_ns + ms(1), ms(1), outputs)


def operations(outs: Sequence[Out]) -> list[LaneOperation]:
    return [out.message for out in outs if isinstance(out.message, LaneOperation)]


def responses_by_row(outs: Sequence[Out]) -> dict[tuple[str, int], list[float] | int]:
    """Return the values of the rows by (submitter, submit id), or the status of a failed row."""
    responses: dict[tuple[str, int], list[float] | int] = {}
    for out in outs:
        if isinstance(out.message, Outputs):
            values = np.frombuffer(out.buffers[0], np.float32).tolist() if out.buffers else []
            for item in out.message.items:
                assert (out.to, item.id) not in responses
                responses[out.to, item.id] = values[: item.rows] if item.status == Status.OK else item.status
                values = values[item.rows :]
            assert not values
    return responses


def only_result(outs: Sequence[Out], to: str = CONTROLLER) -> Result:
    """Return the only Result in `outs`."""
    [result] = [out.message for out in outs if isinstance(out.message, Result) and out.to == to]
    return result


def registers(outs: Sequence[Out]) -> list[Register]:
    return [out.message for out in outs if isinstance(out.message, Register)]


class WorkerHarness:
    """A worker core that a test drives by messages. Every method returns the worker's output."""

    def __init__(self, inline: bool = True, specs: Sequence[ModelSpec] = (), **settings: Any) -> None:
        self.core = a_worker(inline, specs, **settings)

    def send(self, message: Any, now_ns: int = 0, sender: str = CONTROLLER) -> list[Out]:
        return deliver(self.core, now_ns, sender, message)

    def advance(self, now_ns: int) -> list[Out]:
        return tick_worker(self.core, now_ns)

    def connect(self, controller: str = CONTROLLER) -> list[Out]:
        return connect_controller(self.core, controller)

    def disconnect(self, controller: str = CONTROLLER) -> list[Out]:
        return self.send(PeerDisconnected(controller), 1, "")

    def infer(self, action_id: int = 1, now_ns: int = 0, **fields: Any) -> list[Out]:
        return self.send(an_infer(action_id, **fields), now_ns)

    def ship(
        self, items: Mapping[int, Sequence[float]], action_id: int = 1, now_ns: int = 1, missing: tuple[int, ...] = ()
    ) -> list[Out]:
        ship, buffers = a_ship(items, action_id, missing)
        return deliver(self.core, now_ns, HOLDER, ship, buffers)

    def start(self, items: Mapping[int, Sequence[float]], action_id: int = 1, **fields: Any) -> LaneOperation:
        """Send an action and its inputs, and return its only operation."""
        self.infer(action_id, **fields)
        [operation] = operations(self.ship(items, action_id))
        return operation

    def finish(self, finished: Finished, now_ns: int = ms(3)) -> list[Out]:
        """Send the message of a lane that has finished an operation."""
        return deliver(self.core, now_ns, self.core.lanes, finished)

    def run(self, operation: LaneOperation, now_ns: int = ms(3)) -> list[Out]:
        return self.finish(run_operation(operation), now_ns)

    def load(self, action_id: int = 1, model: str = MODEL, share: int = 0) -> list[Out]:
        return self.send(Load(action_id, share, model, 0, ms(100), ms(5)))

    def finish_load(self, action_id: int = 1, status: Status = Status.OK) -> list[Out]:
        reason = "" if status == Status.OK else "broken"
        return self.finish(Finished(action_id, "load", status, 5, 10, 5, reason=reason), 10)

    def unload(self, action_id: int, model: str = MODEL) -> list[Out]:
        return self.send(Unload(action_id, 0, model), 12)
