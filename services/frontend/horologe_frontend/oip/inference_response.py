"""The response to an inference: the outputs of an Answer as JSON or binary data."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from horologe_common.models import DTYPES
from horologe_common.status import HorologeError, InvalidInput, Status, error_for
from horologe_common.string_tensors import decode_text
from horologe_common.wire import Tensor
from horologe_common.wire.frames import decode_array
from horologe_frontend.http.http_messages import BINARY, JSON, HttpResponse
from horologe_frontend.http.steps import run_at_once
from horologe_frontend.oip.binary_encoding import HEADER_LENGTH, NUMBER_CODES, classify, number_struct
from horologe_frontend.oip.json_encoding import LONG_BYTES, RawValues
from horologe_frontend.oip.known_parameters import IGNORED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec
    from horologe_common.wire import Answer, Predict
    from horologe_frontend.http.steps import Steps

    Labels = Mapping[str, Sequence[str]]
    """Name of an output -> labels of its classes."""
    FindSpec = Callable[[str, str], ModelSpec]
    """Returns a model by name and version. Raises `HorologeError` if there is none."""

NO_LABELS: Labels = {}
VALUES = b"\0"
"""Place of the values of an output in an encoded document. JSON text never contains this byte."""
STRUCT_BYTES = 1024
"""Numbers in up to this many bytes are decoded by `struct`: 16 floats take 0.2 us, with numpy 1.8 us. Beyond, numpy is
faster: 1,000 floats take 12 us, with `struct` 21 us."""
STEP_VALUES = 8192
_encode = msgspec.json.Encoder().encode


class OutputTensorJson(msgspec.Struct, omit_defaults=True):
    """An output. `data` is flat and row-major. Without it, the bytes follow the JSON."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: dict[str, int] | None = None
    data: RawValues | None = None


class AnswerJson(msgspec.Struct, omit_defaults=True):
    """The answer of a model or an application to an inference."""

    model_name: str
    outputs: list[OutputTensorJson]
    model_version: str = ""
    id: str = ""
    parameters: dict[str, str] | None = None


class OutputFormat(NamedTuple):
    """The form of an output in the response: binary or JSON, and its `classes` highest values (0: all values)."""

    binary: bool = False
    classes: int = 0


class ResponseTemplate(msgspec.Struct, frozen=True):
    """The JSON of a response around the values of its outputs."""

    head: bytes
    """The JSON before the first values."""
    outputs: Sequence[Tensor]
    texts: tuple[bytes | None, ...]
    """The JSON behind the values of each output. None: the output is binary."""

    def fill(self, buffers: Sequence[Buffer]) -> HttpResponse:
        """Return the response with the bytes of the outputs. Raise as `tensor_values` does."""
        parts, blobs = [self.head], []
        for tensor, text, buffer in zip(self.outputs, self.texts, buffers, strict=True):
            if text is None:
                blobs.append(buffer)
            else:
                parts += (_encode(tensor_values(tensor, buffer)), text)
        head = b"".join(parts)
        return _response([head], len(head), blobs)

    def fill_in_steps(self, buffers: Sequence[Buffer]) -> Steps[HttpResponse]:
        """Return the same response as `fill`, made in steps."""
        parts: list[Buffer] = [self.head]
        blobs, size = [], len(self.head)
        for tensor, text, buffer in zip(self.outputs, self.texts, buffers, strict=True):
            if text is None:
                blobs.append(buffer)
                continue
            comma = b"["
            for part, values in split_values(tensor, buffer):
                parts += (comma, _encode(tensor_values(part, values))[1:-1])
                comma, size = b",", size + len(parts[-1]) + 1
                yield size
            parts.append(b"]" + text if comma == b"," else b"[]" + text)
            size += len(parts[-1])
        return _response(parts, size, blobs)


def _response(json_parts: Sequence[Buffer], json_size: int, blobs: Sequence[Buffer]) -> HttpResponse:
    """Return the response of these parts of JSON and binary data. Only short bodies are copied together."""
    parts = [*json_parts, *blobs]
    content_type, headers = (BINARY, ((HEADER_LENGTH, b"%d" % json_size),)) if blobs else (JSON, ())
    if json_size + sum(map(len, blobs)) < LONG_BYTES:
        return HttpResponse(200, b"".join(parts), content_type, headers)
    return HttpResponse(200, b"", content_type, headers, parts)


class ResponseFormat(msgspec.Struct):
    """The form of a response: the format of each requested output, in order. Empty: all outputs, as `default`."""

    outputs: Mapping[str, OutputFormat]
    default: OutputFormat
    id: str = ""
    ignored: tuple[str, ...] = ()
    """Parameters of the request that have no effect. The response names them."""
    empty_final: bool = False
    """Over gRPC: the end of a stream of items is a response without outputs."""
    last: tuple[tuple[Any, ...], ResponseTemplate] | None = None
    """The template of the last response, and what it depends on."""
    last_head: tuple[Any, bytes] | None = None
    """Over gRPC: the message of the last response without its bytes, and what it depends on."""

    def format_of(self, name: str) -> OutputFormat:
        return self.outputs.get(name, self.default)

    def takes_long(self, outputs: Sequence[Tensor]) -> bool:
        """Return whether to make the response in steps: as JSON or classes, it takes more than a millisecond or two."""
        for tensor in outputs:
            if tensor.nbytes > LONG_BYTES:
                output = self.format_of(tensor.name)
                if not output.binary or output.classes:
                    return True
        return False

    def has_classes(self) -> bool:
        """Return whether an output is requested as classes."""
        return self.default.classes > 0 or any(output.classes for output in self.outputs.values())


def write_answer(
    predict: Predict, form: ResponseFormat, answer: Answer, buffers: Sequence[Buffer], find_spec: FindSpec
) -> HttpResponse:
    """Return the response. Raise the matching `HorologeError` if the status is not OK."""
    if (template := _known_template(predict, form, answer)) is None:
        template, buffers = run_at_once(_answer_template(predict, form, answer, buffers, find_spec))
    return template.fill(buffers)


def write_in_steps(
    predict: Predict, form: ResponseFormat, answer: Answer, buffers: Sequence[Buffer], find_spec: FindSpec
) -> Steps[HttpResponse]:
    """Return the same response as `write_answer`, made in steps."""
    if (template := _known_template(predict, form, answer)) is None:
        template, buffers = yield from _answer_template(predict, form, answer, buffers, find_spec)
    return (yield from template.fill_in_steps(buffers))


def _known_template(predict: Predict, form: ResponseFormat, answer: Answer) -> ResponseTemplate | None:
    """Return the template of the last response if it is that of the answer. Raise an error for another status."""
    if answer.status != Status.OK:
        raise error_for(answer.status, answer.reason, answer.retry_after_ns)
    return form.last[1] if form.last is not None and form.last[0] == template_key(predict, answer) else None


def template_key(predict: Predict, answer: Answer) -> tuple[Any, ...]:
    """Return what a response depends on, besides the form and the bytes: outputs, name, version, contents."""
    name, version = answer.model or predict.model or predict.application, answer.version or predict.version
    return answer.outputs, name, version, answer.content_hashes


def find_labels(predict: Predict, answer: Answer, find_spec: FindSpec) -> Labels:
    """Return the labels of the classes by output, of the version that has answered."""
    try:
        spec = find_spec(predict.model, answer.version or predict.version)
    except HorologeError:  # an application, or a model that has been removed meanwhile
        return NO_LABELS
    return dict(zip([tensor.name for tensor in spec.outputs], spec.labels, strict=False))


def answer_parameters(predict: Predict, form: ResponseFormat, answer: Answer) -> dict[str, str]:
    """Return the parameters of the response."""
    parameters = {}
    if not predict.model:
        parameters = {"prediction_id": answer.prediction.hex(), "models": ",".join(answer.models)}
    if answer.content_hashes:
        parameters["content_hash"] = ",".join(answer.content_hashes)
    if form.ignored:
        parameters[IGNORED] = ",".join(form.ignored)
    return parameters


def _answer_template(
    predict: Predict, form: ResponseFormat, answer: Answer, buffers: Sequence[Buffer], find_spec: FindSpec
) -> Steps[tuple[ResponseTemplate, Sequence[Buffer]]]:
    key = _, name, version, _ = template_key(predict, answer)
    parameters = answer_parameters(predict, form, answer)
    template, buffers = yield from make_template(
        form,
        answer.outputs,
        buffers,
        lambda outputs: AnswerJson(name, outputs, version, form.id, parameters or None),
        find_labels(predict, answer, find_spec) if form.has_classes() else NO_LABELS,
    )
    if predict.model and not form.has_classes():
        form.last = key, template
    return template, buffers


def make_template(
    form: ResponseFormat,
    outputs: Sequence[Tensor],
    buffers: Sequence[Buffer],
    document_of: Callable[[list[OutputTensorJson]], Any],
    labels: Labels = NO_LABELS,
) -> Steps[tuple[ResponseTemplate, Sequence[Buffer]]]:
    """Return the template and the bytes to fill it with. `document_of` makes the JSON document around the outputs."""
    formats = [form.format_of(tensor.name) for tensor in outputs]
    if form.has_classes():
        pairs = []
        for tensor, buffer, output in zip(outputs, buffers, formats, strict=True):
            if output.classes:
                own = labels.get(tensor.name, ())
                tensor, buffer = yield from classify(tensor, buffer, output.classes, own)
            pairs.append((tensor, buffer))
        outputs, buffers = [tensor for tensor, _ in pairs], [buffer for _, buffer in pairs]
    contents = []
    for tensor, output in zip(outputs, formats, strict=True):
        content = OutputTensorJson(tensor.name, tensor.datatype, tensor.shape)
        if output.binary:
            content.parameters = {"binary_data_size": tensor.nbytes}
        else:
            content.data = msgspec.Raw(VALUES)
        contents.append(content)
    head, *texts = _encode(document_of(contents)).split(VALUES)
    behind = iter(texts)
    return ResponseTemplate(
        head, outputs, tuple([None if output.binary else next(behind) for output in formats])
    ), buffers


def split_values(
    tensor: Tensor, buffer: Buffer, values_max: int = STEP_VALUES, strings_bytes: int = LONG_BYTES
) -> Iterator[tuple[Tensor, Buffer]]:
    """Yield an output in flat parts of at most `values_max` values, and of about `strings_bytes` of strings."""
    view = memoryview(buffer)
    if tensor.datatype != "BYTES":
        itemsize = DTYPES[tensor.datatype].itemsize
        for at in range(0, len(view), itemsize * values_max):
            part = view[at : at + itemsize * values_max]
            yield Tensor(tensor.name, tensor.datatype, (len(part) // itemsize,), len(part)), part
        return
    begin = end = count = 0
    while end < len(view):
        end += 4 + int.from_bytes(view[end : end + 4], "little")
        count += 1
        if count == values_max or end - begin >= strings_bytes or end >= len(view):
            part = view[begin:end]
            yield Tensor(tensor.name, "BYTES", (count,), len(part)), part
            begin, count = end, 0


def tensor_values(tensor: Tensor, buffer: Buffer) -> Sequence[Any]:
    """Return the values of an output, flat and row-major. The encoder turns NaN and infinities into null.

    Raise `InvalidInput` for a datatype without a JSON form: FP16, and BYTES that are not UTF-8.
    """
    if tensor.datatype in NUMBER_CODES and len(buffer) <= STRUCT_BYTES:
        return number_struct(tensor.datatype, math.prod(tensor.shape)).unpack(buffer)
    if tensor.datatype == "FP16":
        raise InvalidInput(f"output {tensor.name!r}: FP16 has no JSON form: request it with binary_data")
    array = decode_array(tensor, buffer)
    if tensor.datatype == "BYTES":
        try:
            array = decode_text(f"output {tensor.name!r}", array)
        except InvalidInput as error:
            raise InvalidInput(f"{error.reason}: request other bytes with binary_data") from error
    values: list[Any] = array.reshape(-1).tolist()
    return values
