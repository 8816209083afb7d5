"""The response to an inference: the outputs of an Answer as JSON or binary data."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from horologe_common.status import InvalidInput, Status, error_for
from horologe_common.string_tensors import decode_text
from horologe_common.wire.frames import decode_array
from horologe_frontend.http.http_responses import BINARY, HttpResponse
from horologe_frontend.oip.binary_encoding import HEADER_LENGTH, NUMBER_CODES, classify, number_struct
from horologe_frontend.oip.known_parameters import IGNORED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.wire import Answer, Predict, Tensor

VALUES = b"\0"
"""Place of the values of an output in an encoded document. JSON text never contains this byte."""
STRUCT_BYTES = 1024
"""Numbers in up to this many bytes are decoded by `struct`: 16 floats take 0.2 us, with numpy 1.8 us. Beyond, numpy is
faster: 1,000 floats take 12 us, with `struct` 21 us."""
_encode = msgspec.json.Encoder().encode


class OutputTensorJson(msgspec.Struct, omit_defaults=True):
    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: dict[str, Any] | None = None
    data: msgspec.Raw | None = None


class AnswerJson(msgspec.Struct, omit_defaults=True):
    model_name: str
    outputs: list[OutputTensorJson]
    model_version: str = ""
    id: str = ""
    parameters: dict[str, Any] | None = None


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
        if not blobs:
            return HttpResponse(200, head)
        return HttpResponse(200, b"".join((head, *blobs)), BINARY, ((HEADER_LENGTH, b"%d" % len(head)),))


class ResponseFormat(msgspec.Struct):
    """The form of a response: the format of each requested output, in order. Empty: all outputs, as `default`."""

    outputs: Mapping[str, OutputFormat]
    default: OutputFormat
    id: str = ""
    ignored: tuple[str, ...] = ()
    """Parameters of the request that have no effect. The response names them."""
    last: tuple[tuple[Any, ...], ResponseTemplate] | None = None
    """The template of the last response, and what it depends on."""

    def format_of(self, name: str) -> OutputFormat:
        return self.outputs.get(name, self.default)

    def has_classes(self) -> bool:
        """Return whether an output is requested as classes."""
        return self.default.classes > 0 or any(output.classes for output in self.outputs.values())


def write_answer(predict: Predict, form: ResponseFormat, answer: Answer, buffers: Sequence[Buffer]) -> HttpResponse:
    """Return the response. Raise the matching `HorologeError` if the status is not OK."""
    if answer.status != Status.OK:
        raise error_for(answer.status, answer.reason, answer.retry_after_ns)
    name, version = answer.model or predict.model or predict.application, answer.version or predict.version
    key = (answer.outputs, name, version, answer.content_hashes)
    if form.last is not None and form.last[0] == key:
        return form.last[1].fill(buffers)
    parameters = {}
    if not predict.model:
        parameters = {"prediction_id": answer.prediction.hex(), "models": ",".join(answer.models)}
    if answer.content_hashes:
        parameters["content_hash"] = ",".join(answer.content_hashes)
    if form.ignored:
        parameters[IGNORED] = ",".join(form.ignored)
    template, buffers = make_template(
        form, answer.outputs, buffers, lambda outputs: AnswerJson(name, outputs, version, form.id, parameters or None)
    )
    if predict.model and not form.has_classes():
        form.last = key, template
    return template.fill(buffers)


def make_template(
    form: ResponseFormat,
    outputs: Sequence[Tensor],
    buffers: Sequence[Buffer],
    document_of: Callable[[list[OutputTensorJson]], Any],
) -> tuple[ResponseTemplate, Sequence[Buffer]]:
    """Return the template of a response and the bytes to fill it with.

    `document_of` makes the JSON document around the outputs.
    """
    formats = [form.format_of(tensor.name) for tensor in outputs]
    if form.has_classes():
        pairs = [
            classify(tensor, buffer, output.classes) if output.classes else (tensor, buffer)
            for tensor, buffer, output in zip(outputs, buffers, formats, strict=True)
        ]
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
