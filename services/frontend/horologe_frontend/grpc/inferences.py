"""The way of an inference from a message to the Answer, and to the encoded response."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.status import InvalidInput, Status
from horologe_frontend.answer_stream import AnswerStream
from horologe_frontend.core.access import Scope
from horologe_frontend.grpc.calls import find_metadata
from horologe_frontend.grpc.inference_messages import classify_outputs, limit_budget, read_in_steps, write_response
from horologe_frontend.grpc.known_messages import KnownMessages
from horologe_frontend.grpc.messages import ModelInferRequest, parse
from horologe_frontend.http.steps import run_at_once, run_in_turns
from horologe_frontend.oip.inference_response import find_labels
from horologe_frontend.oip.json_encoding import LONG_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec
    from horologe_common.wire import Answer
    from horologe_frontend.gateway import Gateway
    from horologe_frontend.grpc.calls import Call
    from horologe_frontend.http.client_accounts import HeldBytes
    from horologe_frontend.oip.predicts import InferenceRequest


class Inferences:
    """Translates inferences. What takes more than a millisecond or two runs in steps."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._known = KnownMessages()

    async def read(self, call: Call, held: HeldBytes, content: bytes) -> InferenceRequest:
        """Return the inference in a ModelInferRequest, with the deadline and the trace of the call.

        `held` counts the bytes of the request. Raise `HorologeError` or `Unsupported`.
        """
        spec, inference = self._read_known(call, content) or await self._read_new(call, held, content)
        if self._gateway.is_traced and (header := find_metadata(call.rpc, "traceparent")):
            predict = msgspec.structs.replace(inference.predict, traceparent=header.decode("latin-1"))
            inference = msgspec.structs.replace(inference, predict=predict)
        remaining_ns = call.remaining_ns()
        return inference if remaining_ns is None else limit_budget(inference, spec, remaining_ns)

    def _read_known(self, call: Call, content: bytes) -> tuple[ModelSpec, InferenceRequest] | None:
        """Return the inference in a message whose fields are known, or None. Another one may name another model."""
        template = self._known.find_template(content)
        inference = None if template is None else template.read(content)
        if template is None or inference is None:
            return None
        call.check(Scope.INFER, template.model)
        is_present = self._gateway.find_spec(template.model, template.version) is template.spec
        return (template.spec, inference) if is_present else None

    async def _read_new(self, call: Call, held: HeldBytes, content: bytes) -> tuple[ModelSpec, InferenceRequest]:
        request = parse(ModelInferRequest, content)
        call.check(Scope.INFER, request.model_name)
        spec = self._gateway.find_spec(request.model_name, request.model_version)
        steps = read_in_steps(spec, request)
        is_long = len(content) > LONG_BYTES and not request.raw_input_contents
        inference = await run_in_turns(steps, held) if is_long else run_at_once(steps)
        self._known.add(content, request, spec, inference)
        return spec, inference

    def stream(self, inference: InferenceRequest, client: str) -> AnswerStream:
        """Return the items of a request, then its answer."""
        return AnswerStream(self._gateway, inference.predict, inference.buffers, client)

    async def predict(self, inference: InferenceRequest, client: str) -> tuple[Answer, Sequence[Buffer]]:
        """Return the answer, whatever its status. If the task is cancelled, the request is cancelled too.

        Raise `InvalidInput` for a model that streams.
        """
        if inference.predict.stream is not None:
            raise InvalidInput(f"model {inference.predict.model!r}: streams its outputs: use ModelStreamInfer")
        return await self._gateway.predict(inference.predict, inference.buffers, client)

    async def write(
        self,
        held: HeldBytes,
        inference: InferenceRequest,
        answer: Answer,
        buffers: Sequence[Buffer],
        *,
        in_stream: bool = False,
    ) -> bytes:
        """Return the encoded response. Raise the `HorologeError` of another status than OK."""
        predict, form = inference.predict, inference.form
        if answer.status == Status.OK and form.has_classes():
            labels = find_labels(predict, answer, self._gateway.find_spec)
            steps = classify_outputs(form, answer, buffers, labels)
            is_long = form.takes_long(answer.outputs)
            answer, buffers = await run_in_turns(steps, held) if is_long else run_at_once(steps)
        return write_response(predict, form, answer, buffers, in_stream=in_stream)
