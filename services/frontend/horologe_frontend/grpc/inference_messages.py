"""Inference over gRPC: from a ModelInferRequest to a Predict, and from the Answer to the bytes of a response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.applications import NAME_LIMIT
from horologe_common.status import InvalidInput, Late, Status, error_for
from horologe_common.wire import Tensor
from horologe_frontend.grpc.messages import (
    ModelInferResponse,
    ModelStreamInferResponse,
    parameter_values,
)
from horologe_frontend.grpc.tensor_contents import bytes_field, read_contents
from horologe_frontend.oip.binary_encoding import check_bytes, classify
from horologe_frontend.oip.inference_response import OutputFormat, answer_parameters, template_key
from horologe_frontend.oip.json_encoding import OutputJson, check_datatype_and_shape, check_signature
from horologe_frontend.oip.known_parameters import INPUT, ITEMS, REQUEST, check_parameters, check_raw
from horologe_frontend.oip.predicts import (
    InferenceRequest,
    flag_parameter,
    make_predict,
    read_response_format,
    refuse_shared_memory,
    stream_predict,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec
    from horologe_common.wire import Answer, Predict
    from horologe_frontend.http.steps import Steps
    from horologe_frontend.oip.inference_response import Labels, ResponseFormat

RAW = OutputFormat(binary=True)
RAW_OUTPUT_FIELD = ModelInferResponse.DESCRIPTOR.fields_by_name["raw_output_contents"].number
RESPONSE_FIELD = ModelStreamInferResponse.DESCRIPTOR.fields_by_name["infer_response"].number
LONG_CONTENTS = 64 << 10
"""Bytes of a message with typed lists that may take more than a millisecond to convert."""
EMPTY_FINAL, FINAL = "triton_enable_empty_final_response", "triton_final_response"
"""Parameters of a request and of a response in a stream: whether the end of its items is a response, and whether a
response is the last one of its request."""


def read_in_steps(spec: ModelSpec, request: Any) -> Steps[InferenceRequest]:
    """Translate a request for `spec`. Only long typed lists need more than one step.

    Raise `InvalidInput` or `TooLarge`. The message names the field, the value received and the value wanted.
    """
    parameters = parameter_values("parameters.", request.parameters) if request.parameters else {}
    empty_final = flag_parameter(parameters, "parameters", EMPTY_FINAL, False)
    parameters.pop(EMPTY_FINAL, None)
    check_parameters("parameters.", parameters, (*REQUEST, *ITEMS) if spec.streams else REQUEST)
    check_raw("parameters.", parameters, "binary_data_output")
    outputs = [_read_output(output) for output in request.outputs]
    form = read_response_format(spec, outputs, RAW, request.id, parameters)
    tensors, buffers = yield from _read_inputs(spec, request)
    predict = make_predict(
        spec, request.model_version, parameters, tensors, tuple(form.outputs), request.id[:NAME_LIMIT]
    )
    if spec.streams:
        predict, form.empty_final = stream_predict(predict, parameters), empty_final
    return InferenceRequest(predict, buffers, form)


def _read_output(output: Any) -> OutputJson:
    where = f"output {output.name!r}: parameters."
    parameters = parameter_values(where, output.parameters)
    check_raw(where, parameters, "binary_data")
    return OutputJson(output.name, parameters)


def limit_budget(inference: InferenceRequest, spec: ModelSpec, remaining_ns: int) -> InferenceRequest:
    """Return the request with the earlier of its deadline, or that of the model, and the deadline of the call.

    `remaining_ns`: time to the deadline of the call. Raise `Late` if it has passed.
    """
    if remaining_ns <= 0:
        raise Late("the deadline of the call has passed")
    predict = inference.predict
    budget_ns = min(predict.budget_ns or spec.slo_ns or remaining_ns, remaining_ns)
    return msgspec.structs.replace(inference, predict=msgspec.structs.replace(predict, budget_ns=budget_ns))


def _read_inputs(spec: ModelSpec, request: Any) -> Steps[tuple[tuple[Tensor, ...], list[Buffer]]]:
    inputs, raw = request.inputs, request.raw_input_contents
    if raw and len(raw) != len(inputs):
        raise InvalidInput(f"raw_input_contents: got {len(raw)}, wanted one for each of the {len(inputs)} inputs")
    tensors: list[Tensor] = []
    buffers: list[Buffer] = []
    names: set[str] = set()
    held_bytes = 0
    for index, tensor in enumerate(inputs):
        name, datatype, shape = tensor.name, tensor.datatype, tuple(tensor.shape)
        if name in names:
            raise InvalidInput(f"input {name!r}: given twice")
        names.add(name)
        check_datatype_and_shape(name, datatype, shape)
        if tensor.parameters:
            _check_input_parameters(name, tensor, len(raw[index]) if raw else 0)
        if not raw:
            check_signature(spec, name, datatype, shape)
            buffer = yield from read_contents(tensor, held_bytes)
        elif tensor.HasField("contents"):
            raise InvalidInput(f"input {name!r}: got contents and raw_input_contents, wanted one of them")
        else:
            buffer = raw[index]
            check_bytes(name, datatype, shape, memoryview(buffer), "raw_input_contents")
        held_bytes += len(buffer)
        tensors.append(Tensor(name, datatype, shape, len(buffer)))
        buffers.append(buffer)
    return tuple(tensors), buffers


def _check_input_parameters(name: str, tensor: Any, raw_bytes: int) -> None:
    place = f"input {name!r}"
    parameters = parameter_values(f"{place}: parameters.", tensor.parameters)
    check_parameters(f"{place}: parameters.", parameters, INPUT)
    refuse_shared_memory(place, parameters)
    if (size := parameters.get("binary_data_size", raw_bytes)) != raw_bytes:
        raise InvalidInput(f"{place}: parameters.binary_data_size: got {size}, wanted {raw_bytes}, as in raw contents")


def classify_outputs(
    form: ResponseFormat, answer: Answer, buffers: Sequence[Buffer], labels: Labels
) -> Steps[tuple[Answer, Sequence[Buffer]]]:
    """Return the answer with the requested classes in the place of values. `labels`: by output."""
    tensors, contents = [], []
    for output, buffer in zip(answer.outputs, buffers, strict=True):
        classes, tensor, content = form.format_of(output.name).classes, output, buffer
        if classes:
            tensor, content = yield from classify(output, buffer, classes, labels.get(output.name, ()))
        tensors.append(tensor)
        contents.append(content)
    return msgspec.structs.replace(answer, outputs=tuple(tensors)), contents


def write_response(
    predict: Predict, form: ResponseFormat, answer: Answer, buffers: Sequence[Buffer], *, in_stream: bool = False
) -> bytes:
    """Return the encoded ModelInferResponse, or the ModelStreamInferResponse of a stream.

    Raise the matching `HorologeError` if the status is not OK.
    """
    if answer.status != Status.OK:
        raise error_for(answer.status, answer.reason, answer.retry_after_ns)
    key = template_key(predict, answer), in_stream, answer.more
    if form.last_head is not None and form.last_head[0] == key:
        parts: list[Buffer] = [form.last_head[1]]
    else:
        head = _response_head(predict, form, answer, in_stream)
        parts = [head]
        if predict.model and not form.has_classes():
            form.last_head = key, head
    for buffer in buffers:
        parts += (bytes_field(RAW_OUTPUT_FIELD, len(buffer)), buffer)
    if in_stream:
        parts.insert(0, bytes_field(RESPONSE_FIELD, sum(map(len, parts))))
    return b"".join(parts)


def _response_head(predict: Predict, form: ResponseFormat, answer: Answer, in_stream: bool) -> bytes:
    """Return the encoded response without the bytes of its outputs, which are its last field."""
    _, name, version, _ = template_key(predict, answer)
    response = ModelInferResponse(model_name=name, model_version=version, id=form.id)
    for tensor in answer.outputs:
        response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    for key, text in answer_parameters(predict, form, answer).items():
        response.parameters[key].string_param = text
    if in_stream:
        response.parameters[FINAL].bool_param = not answer.more
    encoded: bytes = response.SerializeToString()
    return encoded
