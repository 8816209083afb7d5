"""The way of an inference from a parsed message to a Predict, and from the Answer to the encoded response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from horologe_frontend.grpc.calls import find_metadata
from horologe_frontend.grpc.inference_messages import limit_budget, read_in_steps, write_in_steps
from horologe_frontend.http.steps import run_at_once, run_in_turns
from horologe_frontend.oip.json_encoding import LONG_BYTES
from horologe_frontend.oip.predicts import find_spec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.wire import Answer
    from horologe_frontend.gateway import Gateway
    from horologe_frontend.grpc.calls import Call
    from horologe_frontend.http.client_accounts import HeldBytes
    from horologe_frontend.oip.predicts import InferenceRequest


class Inferences:
    """Translates inferences. What takes more than a millisecond or two runs in steps."""

    def __init__(self, gateway: Gateway) -> None:
        self._core = gateway.core

    async def read(self, call: Call, held: HeldBytes, request: Any) -> InferenceRequest:
        """Return the inference of a ModelInferRequest, with the deadline and the trace of the call.

        `held` counts the bytes of the request. Raise `HorologeError` or `Unsupported`.
        """
        spec = find_spec(self._core, request.model_name, request.model_version)
        steps = read_in_steps(spec, request)
        is_long = held.size > LONG_BYTES and not request.raw_input_contents
        inference = await run_in_turns(steps, held) if is_long else run_at_once(steps)
        if self._core.tracer is not None and (header := find_metadata(call.context, "traceparent")):
            predict = msgspec.structs.replace(inference.predict, traceparent=header.decode("latin-1"))
            inference = msgspec.structs.replace(inference, predict=predict)
        return limit_budget(inference, spec, call.remaining_ns())

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
        steps = write_in_steps(inference.predict, inference.form, answer, buffers, in_stream=in_stream)
        is_long = inference.form.takes_long(answer.outputs)
        return await run_in_turns(steps, held) if is_long else run_at_once(steps)
