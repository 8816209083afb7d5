"""Outputs, calls and answers beyond the size that their receiver accepts: TOO_LARGE once, and nothing else is hurt."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.client_door import Door as ClientDoor
from gpu_worker.worker_builders import (
    HOLDER,
    SELECTOR,
    a_ship,
    a_worker,
    an_infer,
    connect_controller,
    deliver,
    operations,
)
from harness.builders import sent
from horologe_common.clock import ms
from horologe_common.core.protocol import Out, PeerConnected, PeerDisconnected
from horologe_common.core.staging import StagedInputs
from horologe_common.status import Status
from horologe_common.transport.clients.client_server import ClientLimits
from horologe_common.wire import (
    Answer,
    CallDone,
    Dispatch,
    Envelope,
    ModelCall,
    Outputs,
    Query,
    Row,
    RowStatus,
    RunDone,
    StartRun,
    Submit,
    Tensor,
)
from horologe_common.wire.frames import encode_array, tensors
from horologe_gpu_worker.core.lanes import Finished
from horologe_gpu_worker.core.responses import divide_outputs
from horologe_selector.drivers.driver_runs import DriverRuns
from selector.selector_harness import FRONTEND, SelectorHarness

PROFILER = "profiler/0#1"
TOO_LARGE = int(Status.TOO_LARGE)


def a_column(sizes: list[int], name: str = "y") -> tuple[Tensor, bytes]:
    """Return a BYTES output with one string per row, of these sizes with their four bytes of length."""
    header, buffer = encode_array(
        name, np.array([[bytes([65 + row]) * (size - 4)] for row, size in enumerate(sizes)], object)
    )
    return header, bytes(buffer)


def rows_of(messages: Any) -> dict[int, tuple[int, bytes]]:
    """Return status and bytes of each request. Assert that each has one status, and that the rows add up."""
    found: dict[int, tuple[int, bytes]] = {}
    for items, outputs in messages:
        at = 0
        for item in items:
            assert item.id not in found
            data = b""
            if item.status == Status.OK and outputs:
                buffer = outputs[0][1]
                size = 4 + int.from_bytes(bytes(buffer[at : at + 4]), "little")
                data, at = bytes(buffer[at : at + size]), at + size
            found[item.id] = item.status, data
        if outputs:
            assert at == len(outputs[0][1]) == outputs[0][0].nbytes
            assert outputs[0][0].shape[0] == sum(item.status == Status.OK for item in items)
    return found


@settings(deadline=None)
@given(st.lists(st.integers(4, 60), min_size=1, max_size=12), st.integers(10, 100), st.integers(0, 11))
def test_every_row_has_one_status_and_no_message_exceeds_the_limit(sizes: list[int], limit: int, failed: int) -> None:
    items = [RowStatus(row, 1) for row in range(len(sizes))]
    items.insert(min(failed, len(items)), RowStatus(99, 0, int(Status.MISSING_INPUT), "lost"))
    messages = divide_outputs(items, [a_column(sizes)], limit, True)
    assert all(sum(len(buffer) for _, buffer in outputs) <= limit for _, outputs in messages)
    found = rows_of(messages)
    assert found.pop(99) == (Status.MISSING_INPUT, b"")
    for row, size in enumerate(sizes):
        status, data = found[row]
        assert status == (Status.OK if size <= limit else TOO_LARGE)
        assert len(data) == (size if size <= limit else 0)
        assert data[4:] == bytes([65 + row]) * (len(data) - 4)


def test_the_bytes_of_all_outputs_of_a_request_count_together() -> None:
    columns = [a_column([20, 8], "a"), a_column([20, 8], "b")]
    messages = divide_outputs([RowStatus(1, 1), RowStatus(2, 1)], columns, 30, True)
    assert [(item.id, item.status) for items, _ in messages for item in items] == [(2, 0), (1, TOO_LARGE)]
    reason = next(item.reason for items, _ in messages for item in items if item.id == 1)
    assert reason == "outputs: got 40 bytes, wanted at most 30 (links.max_frame_bytes)"


@pytest.mark.parametrize("rows", [(3, 1), (1, 3)])
def test_a_request_of_several_rows_is_not_divided(rows: tuple[int, int]) -> None:
    header, buffer = encode_array("y", np.arange(16, dtype=np.float32).reshape(4, 4))
    messages = divide_outputs([RowStatus(7, rows[0]), RowStatus(8, rows[1])], [(header, buffer)], 40, True)
    statuses = {item.id: (item.rows, item.status) for items, _ in messages for item in items}
    large, small = (7, 8) if rows[0] == 3 else (8, 7)
    assert statuses == {small: (1, 0), large: (0, TOO_LARGE)}
    [kept] = [np.frombuffer(outputs[0][1], np.float32).tolist() for _, outputs in messages]
    assert kept == ([12, 13, 14, 15] if small == 8 else [0, 1, 2, 3])


def test_a_model_without_batches_is_answered_as_a_whole() -> None:
    header, buffer = encode_array("y", np.zeros(100, np.uint8))
    [(items, outputs)] = divide_outputs([RowStatus(1, 1)], [(header, buffer)], 99, False)
    assert ([item.status for item in items], list(outputs)) == ([TOO_LARGE], [])


def run_batch(limits: dict[str, int], entries: tuple[Row, ...], sizes: list[int]) -> list[Out]:
    """Return what a worker sends when a batch of requests whose outputs have these sizes ends."""
    worker = a_worker()
    connect_controller(worker)
    for peer, limit in limits.items():
        deliver(worker, 0, peer, PeerConnected(peer, "", limit))
    infer = an_infer(entries=entries, parties=(HOLDER, SELECTOR, PROFILER))
    deliver(worker, 0, "controller/0#a", infer)
    ship, buffers = a_ship({entry.input_id: [1.0] for entry in entries})
    [operation] = operations(deliver(worker, 0, HOLDER, ship, buffers))
    finished = Finished(operation.action_id, "exec", Status.OK, 5, ms(1), ms(1), [a_column(sizes)])
    return deliver(worker, ms(1), worker.lanes, finished)


def test_a_worker_runs_a_batch_once_and_each_submitter_gets_what_it_accepts() -> None:
    entries = tuple(Row(0, 100 + at, 1 + at % 2, 200 + at, 1) for at in range(4))
    outs = run_batch({SELECTOR: 50, PROFILER: 500}, entries, [30, 90, 60, 10])
    results = [out.message for out in outs if out.to == "controller/0#a"]
    assert [(result.status, result.rows) for result in results] == [(Status.OK, ())], "the controller must not retry"
    statuses = {
        (out.to, item.id): item.status for out in outs if isinstance(out.message, Outputs) for item in out.message.items
    }
    assert statuses == {(SELECTOR, 200): 0, (SELECTOR, 202): TOO_LARGE, (PROFILER, 201): 0, (PROFILER, 203): 0}


def test_a_peer_that_has_reported_no_limit_or_is_lost_gets_all_rows() -> None:
    outs = run_batch({}, (Row(0, 100, 1, 200, 1),), [1000])
    assert [item.status for out in outs if isinstance(out.message, Outputs) for item in out.message.items] == [0]
    worker = a_worker()
    deliver(worker, 0, SELECTOR, PeerConnected(SELECTOR, "", 10))
    deliver(worker, 0, SELECTOR, PeerDisconnected(SELECTOR))
    assert not worker.infers.frame_limits


class SelectorOfLargeAnswers(SelectorHarness):
    """A selector with a frontend that accepts 100 bytes, and equal queries to a model."""

    def __init__(self, queries: int = 1) -> None:
        super().__init__(models="m")
        self.send(FRONTEND, PeerConnected(FRONTEND, "", 100))
        for number in range(queries):
            self.send(FRONTEND, Query(1 + number, "m/1", ms(100 + number), 1, bytes(32)))

    def answers(self) -> list[tuple[int, int, int]]:
        outs = [out for out in self.selector.out if isinstance(out.message, Answer)]
        return [(out.message.id, out.message.status, len(out.buffers)) for out in outs]


def test_a_selector_answers_too_large_for_outputs_that_its_frontend_does_not_accept() -> None:
    selector = SelectorOfLargeAnswers()
    header, buffer = encode_array("y", np.zeros((1, 30), np.float32))
    selector.send("worker/0#1", Outputs(1, (RowStatus(1, 1),), (header,)), [buffer])
    assert selector.answers() == [(1, TOO_LARGE, 0)]


def test_equal_queries_behind_a_too_large_prediction_are_answered_without_another_run() -> None:
    selector = SelectorOfLargeAnswers(queries=3)
    assert len(sent(selector.selector, Submit)) == 1
    selector.send("worker/0#1", Outputs(1, (RowStatus(1, 0, TOO_LARGE, "outputs: got 5 bytes"),), ()))
    assert selector.answers() == [(1, TOO_LARGE, 0), (2, TOO_LARGE, 0), (3, TOO_LARGE, 0)]
    assert not sent(selector.selector, Submit)


def run_driver(function: Any, answer: CallDone | None = None) -> list[Any]:
    """Return what a driver sends for a run, whose calls are answered with `answer`. It may send 100 bytes at once."""
    runs = DriverRuns(function, 10, lambda: 0, max_frame_bytes=100)
    header, buffer = encode_array("x", np.zeros((1, 2), np.float32))
    runs.handle(StartRun(1, ms(100), (header,)), [buffer])
    messages: list[Any] = []
    for _ in range(3):
        runs.step()
        for message, _ in runs.out:
            messages.append(message)
            if isinstance(message, ModelCall) and answer:
                runs.handle(answer, ())
        runs.out = []
    return messages


async def call_with_much(call: Any, inputs: Any) -> Any:
    return await call("m", {"x": np.zeros(200, np.uint8)})


async def catch_too_large(call: Any, inputs: Any) -> Any:
    try:
        return await call("m", {"x": np.zeros(200, np.uint8)})
    except call.Failed as error:
        return {"y": np.zeros(4 if error.status == "TOO_LARGE" else 5, np.uint8)}


async def return_much(call: Any, inputs: Any) -> Any:
    return {"y": np.zeros(60, np.uint8), "z": np.zeros(60, np.uint8)}


async def return_many_strings(call: Any, inputs: Any) -> Any:
    return {"y": np.array([b"abcd"] * 20, object)}


async def pass_on(call: Any, inputs: Any) -> Any:
    return await call("m", inputs)


@pytest.mark.parametrize(
    ("function", "size"),
    [
        (call_with_much, "inputs of a call: got 200"),
        (return_much, "result: got 120"),
        (return_many_strings, "result: got 160"),
    ],
)
def test_a_driver_that_sends_too_much_ends_only_its_run(function: Any, size: str) -> None:
    [done] = run_driver(function)
    assert isinstance(done, RunDone)
    assert (done.status, done.reason) == (TOO_LARGE, f"{size} bytes, wanted at most 100 (links.max_frame_bytes)")


def test_a_driver_may_catch_that_a_call_is_too_large() -> None:
    [done] = run_driver(catch_too_large)
    assert (done.status, [tensor.nbytes for tensor in done.outputs]) == (Status.OK, [4])


def test_a_call_whose_outputs_are_too_large_ends_the_run_with_that_status() -> None:
    call, done = run_driver(pass_on, CallDone(1, 1, TOO_LARGE, "stage m: outputs: got 9 bytes"))
    assert isinstance(call, ModelCall)
    assert (done.status, done.reason) == (TOO_LARGE, "stage m: outputs: got 9 bytes")


def test_inputs_that_a_worker_does_not_accept_are_reported_as_missing_and_not_sent() -> None:
    staging = StagedInputs(FRONTEND, 1000)
    for number, size in enumerate((10, 60)):
        staging.hold(number, (Tensor("x", "UINT8", (size,), size),), [bytes(size)])
    staging.add_worker("worker/0#1", 50)
    staging.add_worker("worker/1#1")
    for worker, shipped, missing in (("worker/0#1", [0], (1,)), ("worker/1#1", [0, 1], ())):
        [out] = staging.answer_dispatch(Dispatch(7, worker, (0, 1)))
        assert ([item.input_id for item in out.message.items], out.message.missing) == (shipped, missing)


def answer_packet(*sizes: int) -> tuple[list[Envelope], list[bytes]]:
    """Return a packet with an answer of each size: 0 has no outputs."""
    answers = [
        Answer(number, 0, (Tensor("y", "UINT8", (size,), size),) if size else ()) for number, size in enumerate(sizes)
    ]
    return [Envelope("", "", list(answers))], [bytes(size) for size in sizes if size]


UNIT = 1 << 20
"""A client may have 64 units unread, of which one is left for small answers."""


@pytest.mark.parametrize(
    ("sizes", "unsent", "statuses"),
    [
        ((31, 0), 0, [0, 0]),
        ((32, 0, 1), 0, [TOO_LARGE, 0, 0]),
        ((20, 20, 5), 0, [0, Status.LOST, 0]),
        ((5, 0), 28, [Status.LOST, 0]),
        ((40, 40), 28, [TOO_LARGE, TOO_LARGE]),
        ((3, 0), 28, [0, 0]),
    ],
)
def test_a_client_gets_its_answers_without_the_outputs_for_which_there_is_no_room(
    sizes: tuple[int, ...], unsent: int, statuses: list[int]
) -> None:
    door = ClientDoor(ClientLimits(unsent_bytes=64 * UNIT))
    client, transport = door.connect()
    transport.sent = [bytes(unsent * UNIT)]
    if unsent:
        client.pause_writing()
    envelopes, buffers = client.fit_answers(*answer_packet(*(size * UNIT for size in sizes)))
    answers = envelopes[0].messages
    assert [answer.status for answer in answers if isinstance(answer, Answer)] == statuses
    assert [len(buffer) for buffer in buffers] == [tensor.nbytes for answer in answers for tensor in tensors(answer)]
    assert client.send([bytes(100), *buffers]), "it is not disconnected"
    assert door.server.rejected == 0


def test_unread_answers_of_other_clients_leave_less_room() -> None:
    door = ClientDoor(ClientLimits(unsent_bytes=64 * UNIT))
    other, transport = door.connect()
    transport.sent = [bytes(30 * UNIT)]
    other.pause_writing()
    client, transport = door.connect()
    transport.sent = []
    for size, status in ((15, 0), (20, Status.LOST)):
        [answer] = client.fit_answers(*answer_packet(size * UNIT))[0][0].messages
        assert isinstance(answer, Answer)
        assert answer.status == status
