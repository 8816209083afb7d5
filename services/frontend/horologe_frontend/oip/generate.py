"""The generate extension of Triton: JSON whose fields are the tensors, and server-sent events for each item.

Specification: triton-inference-server/server, docs/protocol/extension_generate.md. An error before the first item is
the response. A later one is the last event, with `error` and `status`.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.applications import NAME_LIMIT
from horologe_common.status import STATUS_NAMES, InvalidInput, Status, error_for
from horologe_common.wire import Tensor
from horologe_frontend.answer_stream import AnswerStream
from horologe_frontend.http.event_stream import EVENTS, EventStream, encode_data
from horologe_frontend.http.http_messages import json_response
from horologe_frontend.oip.inference import check_json_length
from horologe_frontend.oip.inference_response import tensor_values
from horologe_frontend.oip.json_encoding import TensorJson, check_header, decode_tensor
from horologe_frontend.oip.known_parameters import GENERATE, check_parameters, ignored_parameters
from horologe_frontend.oip.predicts import make_predict, stream_predict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec, TensorSpec
    from horologe_common.wire import Answer, Predict
    from horologe_frontend.gateway import Gateway
    from horologe_frontend.http.event_stream import EventSender
    from horologe_frontend.http.http_messages import HttpResponse
    from horologe_frontend.http.steps import Steps

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_generate(spec: ModelSpec, version: str, body: bytes, json_limit: int) -> Steps[tuple[Predict, list[Buffer]]]:
    """Return the request for a stream. Fields that are no inputs are parameters. Raise `InvalidInput` or `TooLarge`."""
    check_json_length(len(body), json_limit)
    try:
        fields = _fields.decode(body)
        inputs = {tensor.name: tensor for tensor in spec.inputs}
        others = {name: msgspec.json.decode(value) for name, value in fields.items() if name not in inputs}
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidInput(f"body: {error}, wanted a JSON object") from error
    name, nested = others.pop("id", ""), others.pop("parameters", None)
    if not isinstance(name, str) or not isinstance(nested, dict | None):
        raise InvalidInput("id, parameters: wanted a string and an object")
    parameters = (nested or {}) | others
    check_parameters("parameters.", parameters, GENERATE)
    ignored_parameters(parameters)
    tensors: list[Tensor] = []
    buffers: list[Buffer] = []
    for field, value in fields.items():
        if field in inputs:
            tensor = _read_tensor(inputs[field], value)
            check_header(tensor, spec)
            buffer = yield from decode_tensor(tensor, sum(map(len, buffers)))
            tensors.append(Tensor(tensor.name, tensor.datatype, tensor.shape, len(buffer)))
            buffers.append(buffer)
    predict = make_predict(spec, version, parameters, tuple(tensors), (), name[:NAME_LIMIT])
    return stream_predict(predict, parameters), buffers


def _read_tensor(spec: TensorSpec, value: msgspec.Raw) -> TensorJson:
    """Return the tensor of a field. Dimensions of 1 are added in front, so that a scalar fits any shape of ones."""
    if spec.datatype == "FP16":
        raise InvalidInput(f"input {spec.name!r}: FP16 has no JSON form: use infer with binary data")
    shape, first = [], msgspec.json.decode(value)
    while isinstance(first, list):
        shape.append(len(first))
        first = first[0] if first else None
    missing = max(0, len(spec.shape) - len(shape))
    data = msgspec.Raw(b"[" * missing + bytes(value) + b"]" * missing)
    return TensorJson(spec.name, (1,) * missing + tuple(shape), spec.datatype, None, data)


def item_fields(predict: Predict, answer: Answer, buffers: Sequence[Buffer]) -> dict[str, Any]:
    """Return the JSON of an item. Raise `InvalidInput` for an output without a JSON form."""
    fields: dict[str, Any] = {"model_name": answer.model or predict.model, "model_version": answer.version}
    if predict.name:
        fields["id"] = predict.name
    for tensor, buffer in zip(answer.outputs, buffers, strict=True):
        values = tensor_values(tensor, buffer)
        fields[tensor.name] = values[0] if len(values) == 1 else list(values)
    return fields


async def generate(gateway: Gateway, predict: Predict, buffers: Sequence[Buffer], client: str) -> HttpResponse:
    """Return the only item of a request. Raise its `HorologeError`; `InvalidInput` if there is not exactly one."""
    items = []
    with AnswerStream(gateway, predict, buffers, client) as stream:
        async for answer, outputs in stream:
            _raise_failure(answer)
            if answer.outputs:
                items.append(item_fields(predict, answer, outputs))
            if len(items) > 1:
                raise InvalidInput(f"model {predict.model!r}: made more items than one: use generate_stream")
    if not items:
        raise InvalidInput(f"model {predict.model!r}: made no item, wanted one: use generate_stream")
    return json_response(items[0])


async def generate_stream(gateway: Gateway, predict: Predict, buffers: Sequence[Buffer], client: str) -> EventStream:
    """Return the events of a request once its first item is there. Raise the `HorologeError` of one without items."""
    stream = AnswerStream(gateway, predict, buffers, client)
    try:
        first, outputs = await anext(stream)
        _raise_failure(first)
        events = _events(predict, first, outputs)
    except BaseException:
        stream.close()
        raise
    return EventStream(200, b"", EVENTS, on_open=partial(_begin, stream, predict, events))


def _raise_failure(answer: Answer) -> None:
    if answer.status != Status.OK:
        raise error_for(answer.status, answer.reason, answer.retry_after_ns)


def _begin(stream: AnswerStream, predict: Predict, first: bytes, sender: EventSender) -> Callable[[], object]:
    """Send the events in a task. Return the function that ends it when the connection is lost."""
    task = asyncio.ensure_future(_send_events(stream, predict, first, sender))
    task.add_done_callback(lambda _: stream.close())  # also if it is cancelled before it begins
    return task.cancel


async def _send_events(stream: AnswerStream, predict: Predict, first: bytes, sender: EventSender) -> None:
    await sender.send_all(first)
    async for answer, buffers in stream:
        try:
            _raise_failure(answer)
            events = _events(predict, answer, buffers)
        except Exception as error:
            status, reason = getattr(error, "status", Status.FAILED), getattr(error, "reason", str(error))
            await sender.send_all(encode_data({"error": reason, "status": STATUS_NAMES[int(status)]}))
            break
        await sender.send_all(events)
    sender.finish()


def _events(predict: Predict, answer: Answer, buffers: Sequence[Buffer]) -> bytes:
    return encode_data(item_fields(predict, answer, buffers)) if answer.outputs else b""
