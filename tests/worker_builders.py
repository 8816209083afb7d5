"""Builders for worker tests: a worker core, its messages, and lanes that answer `y = sum of x` per row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from builders import a_report, a_spec
from horologe_common.clock import ms
from horologe_common.core.protocol import Out, PeerConnected
from horologe_common.status import Status
from horologe_common.wire import Infer, Outputs, Result, Row, Ship, Shipped
from horologe_common.wire.frames import encode_array
from horologe_gpu_worker.core.lanes import Finished, Operation
from horologe_gpu_worker.core.worker import Worker
from horologe_gpu_worker.execution.batching import assemble_inputs, output_tensors
from horologe_gpu_worker.execution.workspace import Workspace
from horologe_gpu_worker.settings import WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def joined(worker: Worker, controller: str = CONTROLLER) -> list[Out]:
    return told(worker, 0, controller, PeerConnected(controller))


def told(worker: Worker, now_ns: int, sender: str, message: Any, buffers: Sequence[Buffer] = ()) -> list[Out]:
    """Handle, tick, check; returns what the worker put out."""
    worker.handle(now_ns, sender, message, buffers)
    return ticked(worker, now_ns)


def ticked(worker: Worker, now_ns: int) -> list[Out]:
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
    """`rows[i]` rows of input 100 + i at HOLDER, for submit 200 + i of SELECTOR; or the `entries` given."""
    entries = entries or tuple(Row(0, 100 + at, 1, 200 + at, count) for at, count in enumerate(rows))
    batch_size = batch_size or a_spec().compiled_batch_size(sum(entry.rows for entry in entries))
    return Infer(action_id, share, model, batch_size, entries, parties, *window, expected_ns=ms(1))


def an_input(values: Sequence[float]) -> np.ndarray[Any, Any]:
    """One row of `x` per value; its sum is the value."""
    return np.array([[value, 0, 0, 0] for value in values], np.float32)


def a_ship(
    items: dict[int, Sequence[float]], action_id: int = 1, missing: tuple[int, ...] = (), holder: str = HOLDER
) -> tuple[Ship, list[Buffer]]:
    """Inputs by id, as values per row, and their bytes."""
    shipped, buffers = [], []
    for input_id, values in items.items():
        header, buffer = encode_array("x", an_input(values))
        shipped.append(Shipped(input_id, (header,)))
        buffers.append(buffer)
    return Ship(action_id, holder, tuple(shipped), missing), buffers


def ran(operation: Operation, begin_ns: int = 5, spec: ModelSpec | None = None) -> Finished:
    """What a lane says after it has run the sum of each row."""
    space = Workspace()
    x = assemble_inputs(operation, True, space)["x"]
    assert x.shape == (operation.batch_size, 4)
    found = output_tensors(operation, spec or a_spec(), {"y": x.sum(1, keepdims=True)}, space)
    return Finished(operation.action_id, "exec", Status.OK, begin_ns, begin_ns + ms(1), ms(1), found)


def operations(outs: Sequence[Out]) -> list[Operation]:
    return [out.message for out in outs if isinstance(out.message, Operation)]


def answers_of(outs: Sequence[Out]) -> dict[tuple[str, int], list[float] | int]:
    """By (submitter, submit id): the values of its rows, or the status they failed with."""
    found: dict[tuple[str, int], list[float] | int] = {}
    for out in outs:
        if isinstance(out.message, Outputs):
            values = np.frombuffer(out.buffers[0], np.float32).tolist() if out.buffers else []
            for item in out.message.items:
                assert (out.to, item.id) not in found
                found[out.to, item.id] = values[: item.rows] if item.status == Status.OK else item.status
                values = values[item.rows :]
            assert not values
    return found


def result(outs: Sequence[Out], to: str = CONTROLLER) -> Result:
    """The only one among these."""
    [found] = [out.message for out in outs if isinstance(out.message, Result) and out.to == to]
    return found
