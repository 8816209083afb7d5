"""Requests that repeat: the JSON around their numbers is parsed once.

A client sends the same JSON in each request, except for the numbers of a tensor. `KnownRequests` stores the text before
and after the numbers, and what the parser made of it. Of a request with the same text it reads only the numbers.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.wire import Predict
from horologe_frontend.oip.binary_encoding import number_struct
from horologe_frontend.oip.inference import read_request
from horologe_frontend.oip.inference_response import ResponseFormat
from horologe_frontend.oip.json_encoding import LONG_BYTES, list_decoder
from horologe_frontend.oip.predicts import InferenceRequest

if TYPE_CHECKING:
    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec

DATA = b'"data"'
TEMPLATES, TEMPLATE_BYTES = 1024, 2048
"""Maximum number of templates, and maximum size of the text before and of the text after the numbers."""
MAX_DIGITS = 9
"""Maximum number of digits of a JSON length. A longer number exceeds every limit."""


class RequestTemplate(msgspec.Struct, frozen=True, eq=False):
    """Fields that requests for `spec` with the same text around their numbers have in common."""

    spec: ModelSpec
    predict: Predict
    form: ResponseFormat


class BinaryTemplate(RequestTemplate, frozen=True, eq=False):
    """A request whose inputs are all binary data."""

    def fits(self, body: bytes, begin: int, size: int) -> bool:
        """Return whether a body of `size` bytes, of which `body` is the begin, differs in the data only."""
        return begin + sum([tensor.nbytes for tensor in self.predict.inputs]) == size

    def read_buffers(self, body: bytes, begin: int) -> list[Buffer] | None:
        """Return the bytes of the inputs, whose data begins at `begin`. None: the parser must read the request."""
        data, end = memoryview(body), begin
        buffers: list[Buffer] = []
        for tensor in self.predict.inputs:
            begin, end = end, end + tensor.nbytes
            buffers.append(data[begin:end])
        return buffers if end == len(body) else None


class JsonTemplate(RequestTemplate, frozen=True, eq=False):
    """A request whose only input is a flat list of JSON numbers, with `suffix` behind it."""

    suffix: bytes
    decoder: msgspec.json.Decoder[list[Any]]
    packer: struct.Struct

    def fits(self, body: bytes, begin: int, size: int) -> bool:
        """Return whether a body differs in the numbers only. False if it is not complete."""
        end = size - len(self.suffix)
        return len(body) == size and body.find(b"]", begin) + 1 == end and body.endswith(self.suffix)

    def read_buffers(self, body: bytes, begin: int) -> list[Buffer] | None:
        """Return the bytes of the input. None: the parser must read the request."""
        end = len(body) - len(self.suffix)
        if not begin < end <= begin + LONG_BYTES or not body.endswith(self.suffix):
            return None
        try:
            return [self.packer.pack(*self.decoder.decode(body[begin:end]))]
        except (msgspec.MsgspecError, ValueError, RecursionError, struct.error):
            return None


class KnownRequests:
    """Templates by the model and the text before the numbers."""

    def __init__(self, json_limit: int) -> None:
        self._json_limit = json_limit
        self._templates: dict[tuple[str, str, bytes | None, bytes], BinaryTemplate | JsonTemplate] = {}

    def read(self, spec: ModelSpec, version: str, body: bytes, header_length: bytes | None) -> InferenceRequest:
        """Parse a request for `spec`. Parameters and errors are those of `read_request`."""
        begin = _data_begin(body, header_length)
        if not 0 <= begin <= TEMPLATE_BYTES or (header_length is None and len(body) > self._json_limit):
            return read_request(spec, version, body, header_length, self._json_limit)
        key = (spec.name, version, header_length, body[:begin])
        template = self._templates.get(key)
        if template is not None and template.spec is spec:
            buffers = template.read_buffers(body, begin)
            if buffers is not None:
                return InferenceRequest(template.predict, buffers, template.form)
        inference = read_request(spec, version, body, header_length, self._json_limit)
        template = _make_template(body, begin, header_length is None, spec, inference)
        if template is not None:
            if len(self._templates) >= TEMPLATES:
                self._templates.clear()
            self._templates[key] = template
        return inference

    def find(
        self, model: str, version: str, header_length: bytes | None, body: bytes, size: int
    ) -> BinaryTemplate | JsonTemplate | None:
        """Return the template of a request that may equal earlier ones except for its data.

        `body` is the body of `size` bytes. Of binary data, its first `TEMPLATE_BYTES` are enough.
        """
        begin = _data_begin(body, header_length)
        if not 0 <= begin <= TEMPLATE_BYTES:
            return None
        template = self._templates.get((model, version, header_length, body[:begin]))
        return template if template is not None and template.fits(body, begin, size) else None


def _data_begin(body: bytes, header_length: bytes | None) -> int:
    """Return where the binary data begins, or the first list after the key `data`. -1: nowhere."""
    if header_length is not None:
        return int(header_length) if header_length.isdigit() and len(header_length) <= MAX_DIGITS else -1
    at = body.find(DATA)
    return -1 if at < 0 else body.find(b"[", at)


def _make_template(
    body: bytes, begin: int, is_json: bool, spec: ModelSpec, inference: InferenceRequest
) -> BinaryTemplate | JsonTemplate | None:
    """Return the template of a valid request, or None if its text does not show where the numbers are.

    Without escapes and with a single token `"data"`, this token is the key of the only input, and the list after it
    ends at the next bracket.
    """
    predict, form = inference.predict, inference.form
    if any(tensor.datatype == "BYTES" for tensor in predict.inputs):
        return None
    if not is_json:
        size = sum(tensor.nbytes for tensor in predict.inputs)
        return BinaryTemplate(spec, predict, form) if begin + size == len(body) else None
    end = body.find(b"]", begin, begin + LONG_BYTES) + 1
    if end == 0 or len(predict.inputs) != 1 or len(body) - end > TEMPLATE_BYTES:
        return None
    if b"\\" in body or body.count(DATA) != 1:
        return None
    datatype, count = predict.inputs[0].datatype, math.prod(predict.inputs[0].shape)
    decoder, packer = list_decoder(datatype, 1), number_struct(datatype, count)
    template = JsonTemplate(spec, predict, form, body[end:], decoder, packer)
    return template if template.read_buffers(body, begin) == inference.buffers else None
