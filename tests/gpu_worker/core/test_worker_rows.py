"""Rows of a batch go to their submitters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.worker_builders import (
    CONTROLLER,
    HOLDER,
    SELECTOR,
    WorkerHarness,
    a_ship,
    an_infer,
    deliver,
    only_result,
    operations,
    responses_by_row,
    run_operation,
)
from harness.builders import a_spec
from horologe_common.clock import ms
from horologe_common.core.protocol import Out
from horologe_common.models import TensorSpec, check_request
from horologe_common.status import InvalidInput, Status
from horologe_common.wire import Cancel, Outputs, Result, Row, Ship, Shipped, Tensor
from horologe_gpu_worker.core.infer_lifecycle import JOIN_MARGIN_NS
from horologe_gpu_worker.core.lanes import Finished

THREE = {1: [1.0], 2: [2.0], 3: [3.0]}
"""Inputs of three rows."""


def test_a_model_without_batches_gets_its_one_row_as_it_is() -> None:
    worker = WorkerHarness(specs=[a_spec("one", batched=False, batch_sizes=(1,))])
    operation = worker.start({100: [7.0, 8.0]}, model="one/1")
    assert operation.inputs[0][0].shape == (2, 4)
    outputs = [(Tensor("y", "FP32", (3,), 12), np.array([1, 2, 3], np.float32).data.cast("B"))]
    ended = worker.finish(Finished(1, "exec", Status.OK, 1, 2, 1, outputs))
    [out] = [out for out in ended if isinstance(out.message, Outputs)]
    assert np.frombuffer(out.buffers[0], np.float32).tolist() == [1, 2, 3]


def test_rows_of_different_length_do_not_share_a_batch() -> None:
    spec = msgspec.structs.replace(a_spec("text"), inputs=(TensorSpec("x", "FP32", (-1, -1)),))
    worker = WorkerHarness(specs=[spec])
    worker.infer(rows=(1, 1), model="text/1")
    items = (Shipped(100, (Tensor("x", "FP32", (1, 2), 8),)), Shipped(101, (Tensor("x", "FP32", (1, 3), 12),)))
    [operation] = operations(deliver(worker.core, 1, HOLDER, Ship(1, HOLDER, items), [bytes(8), bytes(12)]))
    assert (operation.rows, operation.batch_size, operation.inputs[0][0].shape) == (1, 1, (1, 2))


def test_a_request_that_the_model_fails_fails_alone() -> None:
    worker = WorkerHarness()
    rows = (Row(0, 1, 1, 11, 1), Row(0, 2, 1, 12, 1), Row(0, 3, 0, 13, 2), Row(0, 4, 1, 14, 1))
    worker.infer(entries=rows)
    ship, buffers = a_ship({2: [2.0], 3: [3.0, 4.0], 4: [5.0]}, missing=(1,))
    [operation] = operations(deliver(worker.core, 1, HOLDER, ship, buffers))
    assert operation.request_rows == [1, 2, 1]
    ended = worker.finish(msgspec.structs.replace(run_operation(operation), failed=((0, "no"),)))
    assert responses_by_row(ended) == {
        (SELECTOR, 11): Status.MISSING_INPUT,
        (SELECTOR, 12): Status.FAILED,
        (SELECTOR, 14): [5],
        (HOLDER, 13): [3, 4],
    }
    result = only_result(ended)
    assert (result.status, [(row.id, row.status) for row in result.rows]) == (
        Status.OK,
        [(0, Status.MISSING_INPUT), (1, Status.FAILED)],
    )


def test_requests_with_other_inputs_do_not_share_a_batch() -> None:
    inputs = (TensorSpec("x", "FP32", (-1, 2)), TensorSpec("z", "FP32", (-1, 1)))
    spec = msgspec.structs.replace(a_spec("m"), inputs=inputs, optional=("z",))
    x, z, worker = Tensor("x", "FP32", (1, 2), 8), Tensor("z", "FP32", (1, 1), 4), WorkerHarness(specs=[spec])
    keys = [check_request(spec, tensors)[1] for tensors in ((x, z), (x,), (z, x), (x,))]
    assert keys == [0, keys[1], 0, keys[1]]
    assert keys[1]
    for wrong in ((z,), (x, x), ()):
        with pytest.raises(InvalidInput, match="perhaps without"):
            check_request(spec, wrong)
    worker.infer(rows=(1, 1, 1, 1), model="m/1")  # forged: the controller plans equal keys only
    shipped = tuple(Shipped(100 + at, tensors) for at, tensors in enumerate(((x,), (x, z), (x,), (z,))))
    ship = Ship(1, HOLDER, shipped)
    [operation] = operations(deliver(worker.core, 1, HOLDER, ship, [bytes(8), bytes(8), bytes(4), bytes(8), bytes(4)]))
    assert [tensor.name for tensor, _ in operation.inputs] == ["x"]
    assert operation.rows == 2
    result = only_result(worker.finish(Finished(1, "exec", Status.FAILED, 1, 2, 1, reason="no")))
    assert [(row.id, row.status) for row in result.rows] == [(1, Status.REFUSED), (3, Status.FAILED)]


def test_strings_are_cut_by_row() -> None:
    worker = WorkerHarness()
    worker.start(THREE, entries=(Row(0, 1, 1, 11, 1), Row(0, 2, 0, 12, 1), Row(0, 3, 1, 13, 1)), batch_size=4)
    text = b"".join(len(word).to_bytes(4, "little") + word for word in (b"a", b"", b"ccc"))
    outputs = [(Tensor("y", "BYTES", (3, 1), len(text)), text)]
    ended = worker.finish(Finished(1, "exec", Status.OK, 1, 2, 1, outputs))
    responses = {out.to: (bytes(out.buffers[0]), out.message.outputs[0].shape) for out in ended if out.buffers}
    assert responses == {SELECTOR: (b"\1\0\0\0a\3\0\0\0ccc", (2, 1)), HOLDER: (b"\0\0\0\0", (1, 1))}


@dataclass
class Piece:
    """A row entry of a random batch, and what happens to its input."""

    holder: int
    submitter: int
    rows: int
    fate: str


pieces = st.builds(
    Piece, st.integers(0, 2), st.integers(0, 2), st.integers(1, 3), st.sampled_from(["comes", "missing", "stays away"])
)


@given(st.lists(pieces, min_size=1, max_size=5), st.booleans(), st.booleans(), st.randoms(use_true_random=False))
def test_every_row_goes_to_its_submitter_and_to_nobody_else(
    batch: list[Piece], infer_last: bool, cancel: bool, random: Any
) -> None:
    """Check random batches. Submitter and holder may be equal; a value identifies submitter, row entry and row."""
    worker = WorkerHarness()
    worker.connect()
    parties = ("frontend/0#a", "selector/0#a", "frontend/1#b")
    entries = tuple(Row(p.holder, at, p.submitter, 50 + at, p.rows) for at, p in enumerate(batch))
    infer = an_infer(
        entries=entries, parties=parties, batch_size=a_spec().compiled_batch_size(sum(p.rows for p in batch))
    )
    values = {at: [100.0 * at + row for row in range(p.rows)] for at, p in enumerate(batch)}
    messages: list[tuple[str, Any, Any]] = []
    for number, holder in enumerate(parties):
        mine = [at for at, p in enumerate(batch) if p.holder == number]
        missing = tuple(at for at in mine if batch[at].fate == "missing")
        messages.append(
            (holder, *a_ship({at: values[at] for at in mine if batch[at].fate == "comes"}, 1, missing, holder))
        )
    random.shuffle(messages)
    messages.insert(len(messages) if infer_last else 0, (CONTROLLER, infer, ()))
    outs: list[Out] = []
    for sender, message, buffers in messages:
        outs += deliver(worker.core, 1, sender, message, buffers)
    if cancel:
        outs += worker.send(Cancel((1,)), 2)
    outs += worker.advance(ms(10) - JOIN_MARGIN_NS)
    for operation in operations(outs):
        outs += worker.run(operation, ms(10))
    outs += worker.advance(ms(10))
    assert isinstance(only_result(outs), Result)
    responses = responses_by_row(outs)
    here = [at for at, p in enumerate(batch) if p.fate == "comes"]
    if not operations(outs):
        assert not responses
        return
    assert here
    assert responses == {
        (parties[p.submitter], 50 + at): values[at] if p.fate == "comes" else Status.MISSING_INPUT
        for at, p in enumerate(batch)
    }
    assert {row.id for row in only_result(outs).rows} == {at for at, p in enumerate(batch) if p.fate != "comes"}


def test_outputs_of_neighbouring_rows_are_not_copied() -> None:
    worker = WorkerHarness()
    rows = (Row(0, 1, 1, 11, 1), Row(0, 2, 1, 12, 1), Row(0, 3, 0, 13, 1))
    finished = run_operation(worker.start(THREE, entries=rows, batch_size=4))
    outs = worker.finish(finished)
    batch = np.frombuffer(finished.outputs[0][1], np.uint8)
    parts = [np.frombuffer(out.buffers[0], np.uint8) for out in outs if out.buffers]
    assert [len(part) for part in parts] == [8, 4]
    assert all(np.shares_memory(batch, part) for part in parts)
    assert not operations(outs)
