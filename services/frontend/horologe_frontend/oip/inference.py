"""Inference over HTTP: from the JSON or binary request to a Predict, and from the Answer to the response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_common.applications import NAME_LIMIT
from horologe_common.status import InvalidInput, TooLarge
from horologe_common.wire import Tensor
from horologe_frontend.http.steps import run_at_once
from horologe_frontend.oip.binary_encoding import BinaryData, check_bytes, raw_input, split_body
from horologe_frontend.oip.inference_response import OutputFormat, ResponseFormat
from horologe_frontend.oip.json_encoding import LONG_BYTES, check_header, decode_infer, decode_parameters, decode_tensor
from horologe_frontend.oip.known_parameters import INPUT, REQUEST, check_parameters
from horologe_frontend.oip.predicts import (
    NO_PARAMETERS,
    InferenceRequest,
    flag_parameter,
    make_predict,
    read_response_format,
    refuse_shared_memory,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec
    from horologe_frontend.http.steps import Steps
    from horologe_frontend.oip.json_encoding import InferJson, TensorJson

LONG_DIGITS = 4
"""JSON of more than 9,999 bytes before binary data may be long."""


def read_request(
    spec: ModelSpec, version: str, body: bytes, header_length: bytes | None, json_limit: int
) -> InferenceRequest:
    """Parse a request as `read_in_steps` does, at once."""
    return run_at_once(read_in_steps(spec, version, body, header_length, json_limit))


def is_long(body: bytes, header_length: bytes | None) -> bool:
    """Return whether to parse a request in steps: its JSON takes more than a millisecond or two."""
    return len(body) > LONG_BYTES and (header_length is None or len(header_length) > LONG_DIGITS)


def read_in_steps(
    spec: ModelSpec, version: str, body: bytes, header_length: bytes | None, json_limit: int
) -> Steps[InferenceRequest]:
    """Parse a request for `spec`. `version` is the requested version, or empty.

    Raise `InvalidInput` or `TooLarge`. The message names the field, the value received and the value wanted.
    """
    if header_length is None:
        content, binary = memoryview(body), None
    else:
        content, view = split_body(body, header_length)
        if not content:
            tensor, view = raw_input(spec, view)
            predict = make_predict(spec, version, NO_PARAMETERS, (tensor,), ())
            return InferenceRequest(predict, [view], ResponseFormat({}, OutputFormat(binary=True)))
        binary = BinaryData(view)
    check_json_length(len(content), json_limit)
    request = decode_infer(content)
    parameters = _parameters(request)
    tensors, buffers = yield from read_inputs(request.inputs, spec, binary)
    default = OutputFormat(flag_parameter(parameters, "parameters", "binary_data_output", False))
    form = read_response_format(spec, request.outputs or (), default, request.id or "", parameters)
    predict = make_predict(spec, version, parameters, tuple(tensors), tuple(form.outputs), form.id[:NAME_LIMIT])
    return InferenceRequest(predict, buffers, form)


def check_json_length(size: int, limit: int) -> None:
    """Raise `TooLarge` for more JSON than may be parsed on the loop."""
    if size > limit:
        raise TooLarge(f"body: got {size} bytes of JSON, at most {limit}: send tensors as binary data")


def _parameters(request: InferJson) -> Mapping[str, Any]:
    """Return the parameters, with the fields `context` and `slo_ms`. Raise `InvalidInput` for one without effect."""
    parameters: Mapping[str, Any] = decode_parameters(request.parameters)
    fields = {name: value for name in ("context", "slo_ms") if (value := getattr(request, name)) is not None}
    if fields:
        parameters = {**parameters, **fields}
    check_parameters("parameters.", parameters, REQUEST)
    return parameters


def read_inputs(
    inputs: list[TensorJson], spec: ModelSpec, binary: BinaryData | None = None
) -> Steps[tuple[list[Tensor], list[Buffer]]]:
    """Return the tensors of a request for `spec`, and their bytes. Raise `InvalidInput` or `TooLarge`."""
    tensors, buffers, names = [], [], set()
    held_bytes = 0
    for tensor in inputs:
        if tensor.name in names:
            raise InvalidInput(f"input {tensor.name!r}: given twice")
        names.add(tensor.name)
        check_header(tensor, spec)
        if tensor.parameters:
            check_parameters(f"input {tensor.name!r}: parameters.", tensor.parameters, INPUT)
            refuse_shared_memory(f"input {tensor.name!r}", tensor.parameters)
        buffer = yield from _read_input(tensor, tensor.parameters or NO_PARAMETERS, binary, held_bytes)
        held_bytes += len(buffer)
        tensors.append(Tensor(tensor.name, tensor.datatype, tensor.shape, len(buffer)))
        buffers.append(buffer)
    if binary is not None:
        binary.check_consumed()
    return tensors, buffers


def _read_input(
    tensor: TensorJson, parameters: Mapping[str, Any], binary: BinaryData | None, held_bytes: int
) -> Steps[Buffer]:
    inline = bool(memoryview(tensor.data))
    if inline == ("binary_data_size" in parameters):
        got = "both" if inline else "neither"
        raise InvalidInput(f"input {tensor.name!r}: got {got}, wanted either data or parameters.binary_data_size")
    if not inline:
        binary = binary or BinaryData(memoryview(b""))
        view = binary.pop_bytes(tensor.name, parameters["binary_data_size"])
        check_bytes(tensor.name, tensor.datatype, tensor.shape, view)
        return view
    if tensor.datatype == "FP16":
        raise InvalidInput(f"input {tensor.name!r}: data: FP16 has no JSON form: send it as binary data")
    return (yield from decode_tensor(tensor, held_bytes))
