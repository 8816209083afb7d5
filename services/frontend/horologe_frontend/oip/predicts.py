"""Parts of an inference request that are the same in every protocol: its parameters, the Predict, the response."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.clock import NS_PER_MS, s, us
from horologe_common.status import InvalidInput
from horologe_common.wire import Predict, StreamLimits, Tensor
from horologe_frontend.core.application_requests import APPLICATION_RUNTIME
from horologe_frontend.http.http_messages import Unsupported
from horologe_frontend.oip.inference_response import OutputFormat, ResponseFormat
from horologe_frontend.oip.known_parameters import ITEMS, OUTPUT, check_parameters, ignored_parameters

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec
    from horologe_frontend.http.http_messages import HttpRequest
    from horologe_frontend.oip.json_encoding import OutputJson

NO_PARAMETERS: Mapping[str, Any] = {}
MAX_BUDGET_NS = s(86_400)
"""Budgets over one day are reduced to one day."""
OUTPUTS_MANY = 64
"""A longer list of outputs is refused by its length, before its elements are checked."""


class InferenceRequest(msgspec.Struct, frozen=True):
    """A parsed request: the Predict with its input bytes, and the form of the response."""

    predict: Predict
    buffers: list[Buffer]
    form: ResponseFormat


def make_predict(
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
    content_hash = flag_parameter(parameters, "parameters", "content_hash", False)
    return Predict(
        0, model, version, read_budget_ns(parameters), tensors, outputs, application, context, content_hash, name=name
    )


def complete_predict(predict: Predict, request: HttpRequest, is_traced: bool) -> Predict:
    """Return the Predict with what its HTTP request says beside the body: how long it was held, and its trace."""
    if request.waited_ns:
        predict = msgspec.structs.replace(predict, waited_ns=request.waited_ns)
    if is_traced and (header := request.headers.get(b"traceparent")):
        predict = msgspec.structs.replace(predict, traceparent=header.decode("latin-1"))
    return predict


def stream_predict(predict: Predict, parameters: Mapping[str, Any]) -> Predict:
    """Return the Predict for a stream, with the deadlines of its items. Raise `InvalidInput`."""
    first_ns, gap_ns = (_read_ms(parameters, name) for name in ITEMS)
    return msgspec.structs.replace(predict, stream=StreamLimits(first_ns, gap_ns))


def _read_ms(parameters: Mapping[str, Any], name: str) -> int:
    """Return a parameter in milliseconds as nanoseconds; 0 without it. Raise `InvalidInput`."""
    if name not in parameters:
        return 0
    time_ms = _number_parameter(parameters, name, "milliseconds, more than 0")
    if time_ms <= 0:
        raise InvalidInput(f"parameters.{name}: got {time_ms}, wanted milliseconds, more than 0")
    return max(1, min(round(time_ms * NS_PER_MS), MAX_BUDGET_NS))


def read_budget_ns(parameters: Mapping[str, Any]) -> int:
    """Return the smaller of `timeout` (microseconds) and `slo_ms`, or 0 if the request has neither.

    `timeout` 0 means no timeout, as in Triton's schedule policy extension. Raise `InvalidInput` for other types.
    """
    if not parameters:
        return 0
    budgets = []
    if timeout := _number_parameter(parameters, "timeout", "microseconds, 0 or more"):
        budgets.append(us(timeout))
    if slo_ns := _read_ms(parameters, "slo_ms"):
        budgets.append(slo_ns)
    return max(1, min(*budgets, MAX_BUDGET_NS)) if budgets else 0


def _text_parameter(parameters: Mapping[str, Any], name: str) -> str:
    value = parameters.get(name, "")
    if not isinstance(value, str):
        raise InvalidInput(f"parameters.{name}: got {value!r}, wanted a string")
    return value


def _number_parameter(parameters: Mapping[str, Any], name: str, wanted: str) -> float:
    value = parameters.get(name, 0)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise InvalidInput(f"parameters.{name}: got {value!r}, wanted {wanted}")
    return min(value, 1e15)


def flag_parameter(parameters: Mapping[str, Any], where: str, name: str, default: bool) -> bool:
    """Return the value of a parameter that is true or false. Raise `InvalidInput` for another type."""
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise InvalidInput(f"{where}: {name}: got {value!r}, wanted true or false")
    return value


def refuse_shared_memory(where: str, parameters: Mapping[str, Any]) -> None:
    """Raise `Unsupported` if the tensor `where` is in shared memory."""
    if "shared_memory_region" in parameters:
        raise Unsupported(f"{where}: shared_memory_region: shared memory is not supported; send the data")


def read_response_format(
    spec: ModelSpec,
    outputs: Sequence[OutputJson],
    default: OutputFormat,
    name: str,
    parameters: Mapping[str, Any],
) -> ResponseFormat:
    """Return the form of the response. Raise `InvalidInput`. `name`: the client's id of the request."""
    if len(outputs) > max(OUTPUTS_MANY, len(spec.outputs)):
        raise InvalidInput(f"outputs: got {len(outputs)}, wanted at most {len(spec.outputs)}")
    requested: dict[str, OutputFormat] = {}
    for output in outputs:
        if output.name in requested:
            raise InvalidInput(f"output {output.name!r}: requested twice")
        requested[output.name] = _read_output_format(output, default) if output.parameters else default
    form = ResponseFormat(requested, default, name, ignored_parameters(parameters))
    _check_outputs(spec, form)
    return form


def _read_output_format(output: OutputJson, default: OutputFormat) -> OutputFormat:
    where, parameters = f"output {output.name!r}", output.parameters or NO_PARAMETERS
    check_parameters(f"{where}: parameters.", parameters, OUTPUT)
    refuse_shared_memory(where, parameters)
    classes = parameters.get("classification", 0)
    if not isinstance(classes, int) or isinstance(classes, bool) or classes < 0:
        raise InvalidInput(f"{where}: classification: got {classes!r}, wanted a number of classes")
    return OutputFormat(flag_parameter(parameters, where, "binary_data", default.binary), classes)


def _check_outputs(spec: ModelSpec, requested: ResponseFormat) -> None:
    datatypes = {output.name: output.datatype for output in spec.outputs}
    for name in requested.outputs:
        if name not in datatypes:
            raise InvalidInput(f"output {name!r}: unknown, wanted one of {', '.join(datatypes)}")
    for name in requested.outputs or datatypes:
        output = requested.format_of(name)
        if datatypes[name] == "FP16" and not output.binary and not output.classes:
            raise InvalidInput(f"output {name!r}: FP16 has no JSON form: request it with binary_data")
