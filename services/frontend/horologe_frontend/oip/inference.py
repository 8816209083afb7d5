"""Between an inference request over HTTP and the native Predict and Answer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from horologe_common.clock import ms, s, us
from horologe_common.models import DTYPES, check_tensor
from horologe_common.status import InvalidInput, Status, TooLarge, error_for
from horologe_common.wire import Predict, Tensor
from horologe_frontend.core.applications import RUNTIME
from horologe_frontend.http.responses import BINARY, HttpError, Response
from horologe_frontend.oip.binary_encoding import HEADER_LENGTH, Blob, check_bytes, join_strings, split
from horologe_frontend.oip.json_encoding import (
    LONG_BYTES,
    AnswerJson,
    OutputTensorJson,
    TensorJson,
    classify,
    data_of,
    decode_infer,
    values_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec, TensorSpec
    from horologe_common.wire import Answer
    from horologe_frontend.oip.json_encoding import InferJson, OutputJson

MAX_RANK = 32
MAX_ELEMENTS = 1 << 40
"""Of a shape with its zeros taken as ones: numpy computes such products in 64 bits, even for empty tensors."""
OUTPUTS_MANY = 64
"""Beyond so many they are counted before each is looked at."""
_encoder = msgspec.json.Encoder()


class Inference(NamedTuple):
    """A request as the frontend takes it, and how the client wants its answer."""

    predict: Predict
    buffers: list[Buffer]
    wanted: Wanted
    id: str = ""


def read_request(spec: ModelSpec, version: str, body: bytes, header_length: bytes | None, json_limit: int) -> Inference:
    """Parse a request for `spec`; `version` is the one asked for, if any.

    Raises `InvalidInput` or `TooLarge`, naming the field, what came and what was wanted.
    """
    if header_length is None:
        content, blob = memoryview(body), memoryview(b"")
    else:
        content, blob = split(body, header_length)
        if not content:
            return _raw(spec, version, blob)
    check_json_length(len(content), json_limit)
    request = decode_infer(content)
    parameters = _parameters(request)
    check_request(parameters)
    tensors, buffers = read_inputs(request.inputs, Blob(blob), spec)
    if request.outputs and len(request.outputs) > max(OUTPUTS_MANY, len(spec.outputs)):
        raise InvalidInput(f"outputs: got {len(request.outputs)}, wanted at most {len(spec.outputs)}")
    wanted = wanted_outputs(parameters, request.outputs)
    _check_outputs(spec, wanted)
    predict = _predict(spec, version, parameters, tuple(tensors), tuple(wanted.outputs))
    return Inference(predict, buffers, wanted, request.id or "")


def check_json_length(size: int, limit: int) -> None:
    """Raise `TooLarge` for more JSON than is parsed on the loop."""
    if size > limit:
        raise TooLarge(f"body: got {size} bytes of JSON, at most {limit}: send tensors as binary data")


def _parameters(request: InferJson) -> Mapping[str, Any]:
    parameters = request.parameters or NONE
    own = {name: value for name in ("context", "slo_ms") if (value := getattr(request, name)) is not None}
    return {**parameters, **own} if own else parameters


def _predict(
    spec: ModelSpec, version: str, parameters: Mapping[str, Any], tensors: tuple[Tensor, ...], outputs: tuple[str, ...]
) -> Predict:
    """For a model, or for an application where the signature is that of one."""
    model, application = (spec.name, text(parameters, "application")) if spec.runtime != RUNTIME else ("", spec.name)
    context = text(parameters, "context")
    return Predict(0, model, version, budget_ns(parameters), tensors, outputs, application, context)


def read_inputs(inputs: list[TensorJson], blob: Blob, spec: ModelSpec) -> tuple[list[Tensor], list[Buffer]]:
    """Tensors of a request for `spec`, and their bytes. Raises `InvalidInput` or `TooLarge`."""
    tensors, buffers, names = [], [], set()
    for tensor in inputs:
        if tensor.name in names:
            raise InvalidInput(f"input {tensor.name!r}: given twice")
        names.add(tensor.name)
        _check_header(tensor)
        if len(memoryview(tensor.data)) > LONG_BYTES:
            _check_long(tensor, spec)
        parameters = tensor.parameters or NONE
        refuse_shared_memory(f"input {tensor.name!r}", parameters)
        buffer = _input(tensor, parameters, blob)
        tensors.append(Tensor(tensor.name, tensor.datatype, tensor.shape, len(buffer)))
        buffers.append(buffer)
    blob.end()
    return tensors, buffers


def _input(tensor: TensorJson, parameters: Any, blob: Blob) -> Buffer:
    inline = bool(memoryview(tensor.data))
    if inline == ("binary_data_size" in parameters):
        got = "both" if inline else "neither"
        raise InvalidInput(f"input {tensor.name!r}: got {got}, wanted either data or parameters.binary_data_size")
    if not inline:
        view = blob.take(tensor.name, parameters["binary_data_size"])
        check_bytes(tensor.name, tensor.datatype, tensor.shape, view)
        return view
    if tensor.datatype == "FP16":
        raise InvalidInput(f"input {tensor.name!r}: data: FP16 has no JSON form: send it as binary data")
    return data_of(tensor)


def _check_long(tensor: TensorJson, spec: ModelSpec) -> None:
    """What is long is held against the signature before it is read."""
    for wanted in spec.inputs:
        if wanted.name == tensor.name:
            check_tensor(wanted, tensor.datatype, tensor.shape)
            if spec.batched and tensor.shape and tensor.shape[0] > spec.max_batch:
                raise InvalidInput(f"inputs: got {tensor.shape[0]} rows, wanted 1 to {spec.max_batch}")
            return
    raise InvalidInput(f"inputs: got {tensor.name!r}, wanted {[wanted.name for wanted in spec.inputs]}")


def _check_header(tensor: TensorJson) -> None:
    if tensor.datatype not in DTYPES and tensor.datatype != "BYTES":
        known = ", ".join((*DTYPES, "BYTES"))
        raise InvalidInput(f"input {tensor.name!r}: datatype: got {tensor.datatype!r}, wanted one of {known}")
    shape = tensor.shape
    if len(shape) > MAX_RANK:
        raise InvalidInput(
            f"input {tensor.name!r}: shape: got {len(shape)} dimensions, wanted at most {MAX_RANK} dimensions"
        )
    if shape and min(shape) < 0:
        raise InvalidInput(f"input {tensor.name!r}: shape: got {list(shape)}, wanted no negative dimension")
    elements = math.prod([dim or 1 for dim in shape]) if 0 in shape else math.prod(shape)
    if elements > MAX_ELEMENTS:
        got = f"{list(shape[:4])}..." if len(shape) > 4 else list(shape)
        raise InvalidInput(
            f"input {tensor.name!r}: shape: got {got}, wanted at most {MAX_RANK} dimensions and {MAX_ELEMENTS} elements"
        )


def _check_outputs(spec: ModelSpec, wanted: Wanted) -> None:
    known = {output.name: output.datatype for output in spec.outputs}
    for name in wanted.outputs:
        if name not in known:
            raise InvalidInput(f"output {name!r}: unknown, wanted one of {', '.join(known)}")
    for name in wanted.outputs or known:
        output = wanted.of(name)
        if known[name] == "FP16" and not output.binary and not output.classes:
            raise InvalidInput(f"output {name!r}: FP16 has no JSON form: ask for it with binary_data")


def _raw(spec: ModelSpec, version: str, blob: memoryview) -> Inference:
    """The raw binary request: the whole body is the only input, and all outputs are binary."""
    if len(spec.inputs) != 1:
        raise InvalidInput(f"body: got a raw request, wanted JSON: model {spec.name} has {len(spec.inputs)} inputs")
    only = spec.inputs[0]
    if only.datatype == "BYTES":
        blob = memoryview(join_strings([bytes(blob)]))
    tensor = Tensor(only.name, only.datatype, _raw_shape(spec, only, len(blob)), len(blob))
    return Inference(_predict(spec, version, NONE, (tensor,), ()), [blob], Wanted({}, Output(binary=True)))


def _raw_shape(spec: ModelSpec, only: TensorSpec, size: int) -> tuple[int, ...]:
    """The shape that the size implies: one variable dimension is computed, the batch being 1 beside another."""
    shape = list(only.shape)
    if spec.batched and shape.count(-1) > 1 and shape[0] == -1:
        shape[0] = 1
    if shape.count(-1) > 1:
        raise InvalidInput(f"body: got a raw request, wanted JSON: {only.name!r} is of shape {list(only.shape)}")
    itemsize = size if only.datatype == "BYTES" else DTYPES[only.datatype].itemsize
    fixed = math.prod(dim for dim in shape if dim != -1) * itemsize
    if -1 in shape and fixed and size and size % fixed == 0:
        shape[shape.index(-1)] = size // fixed
    elif -1 in shape or fixed != size:
        raise InvalidInput(f"body: got {size} bytes, wanted {fixed} for {only.datatype}{list(only.shape)}")
    return tuple(shape)


def write_answer(inference: Inference, answer: Answer, buffers: Sequence[Buffer]) -> Response:
    """The response. Raises the error that an answer other than OK stands for."""
    if answer.status != Status.OK:
        raise error_for(answer.status, answer.reason, answer.retry_after_ns)
    predict, parameters = inference.predict, None
    if not predict.model:
        parameters = {"prediction_id": answer.prediction.hex(), "models": ",".join(answer.models)}
    name, version = answer.model or predict.model or predict.application, answer.version or predict.version
    return write_outputs(
        inference, answer, buffers, lambda outputs: AnswerJson(name, outputs, version, inference.id, parameters)
    )


def write_outputs(
    inference: Inference, answer: Answer, buffers: Sequence[Buffer], head_of: Callable[[list[OutputTensorJson]], Any]
) -> Response:
    """The outputs as the client wants them, in a document that `head_of` makes of those in JSON."""
    outputs: list[OutputTensorJson] = []
    blob = []
    for tensor, buffer in zip(answer.outputs, buffers, strict=True):
        output = inference.wanted.of(tensor.name)
        if output.classes:
            tensor, buffer = classify(tensor, buffer, output.classes)
        content = OutputTensorJson(tensor.name, tensor.datatype, tensor.shape)
        if output.binary:
            content.parameters = {"binary_data_size": len(buffer)}
            blob.append(buffer)
        else:
            content.data = values_of(tensor, buffer)
        outputs.append(content)
    head = _encoder.encode(head_of(outputs))
    if not blob:
        return Response(200, head)
    return Response(200, b"".join((head, *blob)), BINARY, ((HEADER_LENGTH, b"%d" % len(head)),))


NONE: Mapping[str, Any] = {}
MAX_BUDGET_NS = s(86_400)
"""A longer deadline than a day is taken as a day."""


class Output(NamedTuple):
    """How one output is wanted: as binary data; as its `classes` highest values (0: as it is)."""

    binary: bool = False
    classes: int = 0


class Wanted(NamedTuple):
    """The outputs asked for, in the order asked; empty: all of them, each as `default` says."""

    outputs: Mapping[str, Output]
    default: Output

    def of(self, name: str) -> Output:
        return self.outputs.get(name, self.default)


def budget_ns(parameters: Mapping[str, Any]) -> int:
    """The deadline: the smaller of `timeout` (microseconds) and `slo_ms`; 0 if there is neither.

    `timeout` 0 means none, as in Triton's schedule policy extension. Raises `InvalidInput`.
    """
    if not parameters:
        return 0
    budgets = []
    if timeout := _number(parameters, "timeout", "microseconds, 0 or more"):
        budgets.append(us(timeout))
    if "slo_ms" in parameters:
        slo_ms = _number(parameters, "slo_ms", "milliseconds, more than 0")
        if slo_ms <= 0:
            raise InvalidInput(f"parameters.slo_ms: got {slo_ms}, wanted milliseconds, more than 0")
        budgets.append(ms(slo_ms))
    return max(1, min(*budgets, MAX_BUDGET_NS)) if budgets else 0


def text(parameters: Mapping[str, Any], name: str) -> str:
    """`application`: on whose behalf the request is; `context`: of an application. Empty if it does not say.

    Raises `InvalidInput`.
    """
    value = parameters.get(name, "")
    if not isinstance(value, str):
        raise InvalidInput(f"parameters.{name}: got {value!r}, wanted a text")
    return value


def _number(parameters: Mapping[str, Any], name: str, wanted: str) -> float:
    value = parameters.get(name, 0)
    if not isinstance(value, int | float) or isinstance(value, bool) or value < 0:
        raise InvalidInput(f"parameters.{name}: got {value!r}, wanted {wanted}")
    return min(value, 1e15)


def check_request(parameters: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` for reserved names and for a priority that is none (it is accepted, deadlines decide)."""
    for name in parameters:
        if name.startswith("triton_"):
            raise InvalidInput(f"parameters.{name}: names that begin with triton_ are reserved")
    if "priority" in parameters:
        _number(parameters, "priority", "a priority, 0 or more")


def wanted_outputs(parameters: Mapping[str, Any], outputs: list[OutputJson] | None) -> Wanted:
    """What the request says of its outputs. Raises `InvalidInput`."""
    default = Output(_flag(parameters, "parameters", "binary_data_output", False))
    asked: dict[str, Output] = {}
    for output in outputs or ():
        if output.name in asked:
            raise InvalidInput(f"output {output.name!r}: asked for twice")
        asked[output.name] = _output(output, default) if output.parameters else default
    return Wanted(asked, default)


def _output(output: OutputJson, default: Output) -> Output:
    where, parameters = f"output {output.name!r}", output.parameters or NONE
    refuse_shared_memory(where, parameters)
    classes = parameters.get("classification", 0)
    if not isinstance(classes, int) or isinstance(classes, bool) or classes < 0:
        raise InvalidInput(f"{where}: classification: got {classes!r}, wanted a number of classes")
    return Output(_flag(parameters, where, "binary_data", default.binary), classes)


def _flag(parameters: Mapping[str, Any], where: str, name: str, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise InvalidInput(f"{where}: {name}: got {value!r}, wanted true or false")
    return value


def refuse_shared_memory(where: str, parameters: Mapping[str, Any]) -> None:
    """Raises `HttpError` 501: shared memory is not offered."""
    if "shared_memory_region" in parameters:
        raise HttpError(501, f"{where}: shared_memory_region: shared memory is not supported; send the data")
