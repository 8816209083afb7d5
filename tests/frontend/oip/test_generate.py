"""Requests of the generate extension: JSON fields become tensors, and what does not fit is named."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from frontend.oip_requests import content, error, send
from harness.event_loop import in_loop
from horologe_common.models import ModelSpec, TensorSpec
from horologe_common.status import HorologeError, InvalidInput, Status
from horologe_common.wire import Answer, Predict, StreamLimits, Tensor
from horologe_frontend.http.event_stream import EventSender
from horologe_frontend.http.steps import run_at_once
from horologe_frontend.oip.generate import generate, generate_stream, read_generate

SPEC = ModelSpec(
    "m",
    "1",
    "python",
    (TensorSpec("text", "BYTES", (1,)), TensorSpec("n", "INT64", (-1, 2)), TensorSpec("flag", "BOOL", (1,))),
    (TensorSpec("out", "BYTES", (1,)),),
    batched=False,
    streams=True,
)


def read(**fields: Any) -> Any:
    return run_at_once(read_generate(SPEC, "", json.dumps(fields).encode(), 1 << 20))


def test_scalars_and_lists_get_the_rank_of_the_input() -> None:
    predict, buffers = read(text="höh", n=[1, -2], flag=True, id="mine", slo_ms=5, parameters={"gap_ms": 2})
    assert [(tensor.name, tensor.shape) for tensor in predict.inputs] == [("text", (1,)), ("n", (1, 2)), ("flag", (1,))]
    assert [bytes(buffer) for buffer in buffers] == [
        b"\x04\0\0\0h\xc3\xb6h",
        (1).to_bytes(8, "little") + (-2).to_bytes(8, "little", signed=True),
        b"\1",
    ]
    assert (predict.name, predict.budget_ns, predict.stream) == ("mine", 5_000_000, StreamLimits(0, 2_000_000))
    nested, _ = read(n=[[1, 2], [3, 4]])
    assert nested.inputs[0].shape == (2, 2)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"n": [1.5, 2]}, "input 'n': data"),
        ({"n": [[1, 2], [3]]}, "input 'n': data"),
        ({"n": {"a": 1}}, "input 'n': data"),
        ({"text": 1}, "input 'text': data"),
        ({"other": 1}, "parameters.other: unknown parameter"),
        ({"id": 1}, "id, parameters: wanted"),
        ({"parameters": []}, "id, parameters: wanted"),
        ({"gap_ms": 0}, "parameters.gap_ms: got 0"),
        ({"priority": -1}, "parameters.priority: got -1"),
    ],
)
def test_what_does_not_fit_is_named(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(HorologeError, match="^" + reason):
        read(**fields)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"text": "\xff"}', b"[" * 5000])
def test_a_body_that_is_no_object(body: bytes) -> None:
    assert error(send("POST", "/v2/models/echo/generate_stream", body)).startswith("body: ")


def test_generate_answers_with_the_outputs_by_name() -> None:
    answer = content(send("POST", "/v2/models/echo/generate", {"in": [1, 2, 3, 4], "id": "x"}))
    assert answer == {"model_name": "echo", "model_version": "10", "id": "x", "out": [1, 2, 3, 4]}


@pytest.mark.parametrize("operation", ["generate", "generate_stream"])
def test_an_error_before_the_first_item_is_the_response(operation: str) -> None:
    response = send("POST", f"/v2/models/refused/{operation}", {"in": [1, 2, 3, 4]})
    assert error(response, 429) == "no room before the deadline"


class ItemsGateway:
    """Answers each request with this number of items, and the end of the stream."""

    def __init__(self, items: int) -> None:
        self.items = items

    def send(self, predict: Predict, buffers: Any, on_reply: Any, client: str) -> int:
        for _ in range(self.items):
            on_reply(Answer(0, int(Status.OK), (Tensor("flag", "BOOL", (1,), 1),), more=True), [b"\1"])
        on_reply(Answer(0, int(Status.OK)), ())
        return 7

    def take_items(self, key: int, items: int) -> None:
        pass

    def cancel(self, key: int) -> None:
        pass


@pytest.mark.parametrize(("items", "reason"), [(0, "made no item"), (2, "made more items than one")])
@in_loop
async def test_generate_is_for_exactly_one_item(items: int, reason: str) -> None:
    gateway: Any = ItemsGateway(items)
    with pytest.raises(InvalidInput, match=f"model 'm': {reason}"):
        await generate(gateway, read(flag=True)[0], (), "client")


@in_loop
async def test_generate_returns_the_only_item() -> None:
    gateway: Any = ItemsGateway(1)
    response = await generate(gateway, read(flag=True)[0], (), "client")
    assert json.loads(response.body)["flag"] is True


class OpenStreamGateway:
    """Answers each request with the first item of a stream."""

    def __init__(self) -> None:
        self.cancelled: list[int] = []

    def send(self, predict: Predict, buffers: Any, on_reply: Any, client: str) -> int:
        on_reply(Answer(0, int(Status.OK), more=True), ())
        return 7

    def cancel(self, key: int) -> None:
        self.cancelled.append(key)


@in_loop
async def test_a_stream_whose_connection_is_lost_before_its_events_are_sent_is_cancelled() -> None:
    gateway: Any = OpenStreamGateway()
    response = await generate_stream(gateway, read(flag=True)[0], (), "client")
    assert response.on_open is not None
    transport: Any = None
    response.on_open(EventSender(transport, asyncio.Event(), bool))()
    await asyncio.sleep(0.01)
    assert gateway.cancelled == [7]
