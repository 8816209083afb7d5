"""Inference over HTTP: from the JSON or binary request to a Predict, and from the Answer to the response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.applications import NAME_LIMIT
from horologe_common.clock import NS_PER_MS, s, us
from horologe_common.status import InvalidInput, TooLarge
from horologe_common.wire import Predict, Tensor
from horologe_frontend.core.application_requests import APPLICATION_RUNTIME
from horologe_frontend.http.http_messages import HttpError
from horologe_frontend.http.steps import run_at_once
from horologe_frontend.oip.binary_encoding import BinaryData, check_bytes, raw_input, split_body
from horologe_frontend.oip.inference_response import OutputFormat, ResponseFormat
from horologe_frontend.oip.json_encoding import LONG_BYTES, check_header, decode_infer, decode_parameters, decode_tensor
from horologe_frontend.oip.known_parameters import INPUT, OUTPUT, REQUEST, check_parameters, ignored_parameters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec
    from horologe_frontend.http.steps import Steps
    from horologe_frontend.oip.json_encoding import InferJson, OutputJson, TensorJson

NO_PARAMETERS: Mapping[str, Any] = {}
MAX_BUDGET_NS = s(86_400)
"""Budgets over one day are reduced to one day."""
LONG_DIGITS = 4
"""JSON of more than 9,999 bytes before binary data may be long."""
OUTPUTS_MANY = 64
"""A longer list of outputs is refused by its length, before its elements are checked."""


class InferenceRequest(msgspec.Struct, frozen=True):
    """A parsed request: the Predict with its input bytes, and the form of the response."""

    predict: Predict
    buffers: list[Buffer]
    form: ResponseFormat


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
            predict = _predict(spec, version, NO_PARAMETERS, (tensor,), ())
            return InferenceRequest(predict, [view], ResponseFormat({}, OutputFormat(binary=True)))
        binary = BinaryData(view)
    check_json_length(len(content), json_limit)
    request = decode_infer(content)
    parameters = _parameters(request)
    tensors, buffers = yield from read_inputs(request.inputs, spec, binary)
    if request.outputs and len(request.outputs) > max(OUTPUTS_MANY, len(spec.outputs)):
        raise InvalidInput(f"outputs: got {len(request.outputs)}, wanted at most {len(spec.outputs)}")
    form = _response_format(parameters, request)
    _check_outputs(spec, form)
    predict = _predict(spec, version, parameters, tuple(tensors), tuple(form.outputs), form.id[:NAME_LIMIT])
    return InferenceRequest(predict, buffers, form)


def check_json_length(size: int, limit: int) -> None:
    """Raise `TooLarge` for more JSON than may be parsed on the loop."""
    if size > limit:
        raise TooLarge(f"body: got {size} bytes of JSON, at most {limit}: send tensors as binary data")


def _predict(
    spec: ModelSpec,
    version: str,
    parameters: Mapping[str, Any],
    tensors: tuple[Tensor, ...],
    outputs: tuple[str, ...],
    name: str = "",
) -> Predict:
    """Return the Predict for a model, or for an application if `spec` is the signature of one."""
    if spec.runtime == APPLICATION_RUNTIME:
        model, application = "", spec.name
    else:
        model, application = spec.name, _text_parameter(parameters, "application")
    context = _text_parameter(parameters, "context")
    content_hash = _flag_parameter(parameters, "parameters", "content_hash", False)
    return Predict(
        0, model, version, _budget_ns(parameters), tensors, outputs, application, context, content_hash, name=name
    )


def _parameters(request: InferJson) -> Mapping[str, Any]:
    """Return the parameters, with the fields `context` and `slo_ms`. Raise `InvalidInput` for one without effect."""
    parameters: Mapping[str, Any] = decode_parameters(request.parameters)
    fields = {name: value for name in ("context", "slo_ms") if (value := getattr(request, name)) is not None}
    if fields:
        parameters = {**parameters, **fields}
    check_parameters("parameters.", parameters, REQUEST)
    return parameters


def _budget_ns(parameters: Mapping[str, Any]) -> int:
    """Return the smaller of `timeout` (microseconds) and `slo_ms`, or 0 if the request has neither.

    `timeout` 0 means no timeout, as in Triton's schedule policy extension. Raise `InvalidInput` for other types.
    """
    if not parameters:
        return 0
    budgets = []
    if timeout := _number_parameter(parameters, "timeout", "microseconds, 0 or more"):
        budgets.append(us(timeout))
    if "slo_ms" in parameters:
        slo_ms = _number_parameter(parameters, "slo_ms", "milliseconds, more than 0")
        if slo_ms <= 0:
            raise InvalidInput(f"parameters.slo_ms: got {slo_ms}, wanted milliseconds, more than 0")
        budgets.append(round(slo_ms * NS_PER_MS))
    return max(1, min(*budgets, MAX_BUDGET_NS)) if budgets else 0


def _text_parameter(parameters: Mapping[str, Any], name: str) -> str:
    value = parameters.get(name, "")
    if not isinstance(value, str):
        raise InvalidInput(f"parameters.{name}: got {value!r}, wanted a string")
    return value


def _number_parameter(parameters: Mapping[str, Any], name: str, wanted: str) -> float:
    value = parameters.get(name, 0)
    if not isinstance(value, int | float) or isinstance(value, bool) or value < 0:
        raise InvalidInput(f"parameters.{name}: got {value!r}, wanted {wanted}")
    return min(value, 1e15)


def _flag_parameter(parameters: Mapping[str, Any], where: str, name: str, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise InvalidInput(f"{where}: {name}: got {value!r}, wanted true or false")
    return value


def _refuse_shared_memory(where: str, parameters: Mapping[str, Any]) -> None:
    if "shared_memory_region" in parameters:
        raise HttpError(501, f"{where}: shared_memory_region: shared memory is not supported; send the data")


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
            _refuse_shared_memory(f"input {tensor.name!r}", tensor.parameters)
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


def _response_format(parameters: Mapping[str, Any], request: InferJson) -> ResponseFormat:
    default = OutputFormat(_flag_parameter(parameters, "parameters", "binary_data_output", False))
    requested: dict[str, OutputFormat] = {}
    for output in request.outputs or ():
        if output.name in requested:
            raise InvalidInput(f"output {output.name!r}: requested twice")
        requested[output.name] = _output_format(output, default) if output.parameters else default
    return ResponseFormat(requested, default, request.id or "", ignored_parameters(parameters))


def _output_format(output: OutputJson, default: OutputFormat) -> OutputFormat:
    where, parameters = f"output {output.name!r}", output.parameters or NO_PARAMETERS
    check_parameters(f"{where}: parameters.", parameters, OUTPUT)
    _refuse_shared_memory(where, parameters)
    classes = parameters.get("classification", 0)
    if not isinstance(classes, int) or isinstance(classes, bool) or classes < 0:
        raise InvalidInput(f"{where}: classification: got {classes!r}, wanted a number of classes")
    return OutputFormat(_flag_parameter(parameters, where, "binary_data", default.binary), classes)


def _check_outputs(spec: ModelSpec, requested: ResponseFormat) -> None:
    datatypes = {output.name: output.datatype for output in spec.outputs}
    for name in requested.outputs:
        if name not in datatypes:
            raise InvalidInput(f"output {name!r}: unknown, wanted one of {', '.join(datatypes)}")
    for name in requested.outputs or datatypes:
        output = requested.format_of(name)
        if datatypes[name] == "FP16" and not output.binary and not output.classes:
            raise InvalidInput(f"output {name!r}: FP16 has no JSON form: request it with binary_data")
