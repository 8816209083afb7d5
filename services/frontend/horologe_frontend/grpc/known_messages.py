"""Messages that repeat: the part before the raw contents is parsed once.

A client sends the same fields in each request, except for the bytes of the inputs, which are the last field. Of a
message with known fields, only these bytes are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.wire import Predict
from horologe_frontend.grpc.messages import ModelInferRequest
from horologe_frontend.grpc.tensor_contents import bytes_field
from horologe_frontend.oip.inference_response import ResponseFormat
from horologe_frontend.oip.predicts import InferenceRequest

if TYPE_CHECKING:
    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec

RAW_FIELD = ModelInferRequest.DESCRIPTOR.fields_by_name["raw_input_contents"].number
TEMPLATES, TEMPLATE_BYTES = 1024, 2048
"""Maximum number of templates, and maximum size of the fields before the raw contents."""


class MessageTemplate(msgspec.Struct, frozen=True):
    """What messages for `spec` with the same fields before the raw contents have in common."""

    size: int
    model: str
    version: str
    spec: ModelSpec
    predict: Predict
    form: ResponseFormat
    spans: tuple[tuple[int, int], ...]
    """Begin and end of the bytes of each input."""

    def read(self, content: bytes) -> InferenceRequest | None:
        """Return the request in a message of this size with these fields. None: it has other lengths of inputs."""
        data, at = memoryview(content), self.spans[0][0]
        buffers: list[Buffer] = []
        for begin, end in self.spans:
            if at != begin and content[at:begin] != bytes_field(RAW_FIELD, end - begin):
                return None
            buffers.append(data[begin:end])
            at = end
        return InferenceRequest(self.predict, buffers, self.form)


class KnownMessages:
    """Templates by the fields of the message, up to the length of the first raw contents."""

    def __init__(self) -> None:
        self._begins: dict[int, int] = {}
        """Size of a message -> where the bytes of its first input begin, in the last one of this size."""
        self._templates: dict[bytes, MessageTemplate] = {}

    def find_template(self, content: bytes) -> MessageTemplate | None:
        """Return the template of a message, or None if its fields are not known."""
        begin = self._begins.get(len(content), 0)
        template = self._templates.get(content[:begin]) if begin else None
        return template if template is not None and template.size == len(content) else None

    def add(self, content: bytes, request: Any, spec: ModelSpec, inference: InferenceRequest) -> None:
        """Store the fields of a valid message, unless they are long or BYTES must be checked each time."""
        tensors = inference.predict.inputs
        if not request.raw_input_contents or any(tensor.datatype == "BYTES" for tensor in tensors):
            return
        spans = _find_spans(content, [tensor.nbytes for tensor in tensors])
        if spans is None or spans[0][0] > TEMPLATE_BYTES:
            return
        if len(self._templates) >= TEMPLATES:
            self._templates.clear()
            self._begins.clear()
        begin = spans[0][0]
        self._begins[len(content)] = begin
        self._templates[content[:begin]] = MessageTemplate(
            len(content), request.model_name, request.model_version, spec, inference.predict, inference.form, spans
        )


def _find_spans(content: bytes, sizes: list[int]) -> tuple[tuple[int, int], ...] | None:
    """Return where the raw contents are if they end the message, in the usual encoding; else None."""
    spans: list[tuple[int, int]] = []
    end = len(content)
    for size in reversed(sizes):
        head, begin = bytes_field(RAW_FIELD, size), end - size
        if begin < len(head) or content[begin - len(head) : begin] != head:
            return None
        spans.append((begin, end))
        end = begin - len(head)
    return tuple(reversed(spans))
