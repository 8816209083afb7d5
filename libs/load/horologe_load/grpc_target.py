"""Load over gRPC: the Open Inference Protocol on one channel of grpc.aio."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import grpc
from grpc import aio

from horologe_common.models import ModelSpec, TensorSpec
from horologe_common.status import InvalidInput, Lost, Unauthenticated, UnknownModel
from horologe_frontend.grpc.messages import SERVICE, ModelInferRequest, message_type
from horologe_load.samples import ClientOutcome
from horologe_load.targets import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.wire import Tensor
    from horologe_load.model_server import ModelServer
    from horologe_load.targets import OnAnswer

    Metadata = Sequence[tuple[str, str]]

OUTCOMES = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: ClientOutcome.REFUSED,
    grpc.StatusCode.DEADLINE_EXCEEDED: ClientOutcome.LATE,
}
ERRORS = {
    grpc.StatusCode.NOT_FOUND: UnknownModel,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: Unauthenticated,
    grpc.StatusCode.UNAVAILABLE: Lost,
    grpc.StatusCode.DEADLINE_EXCEEDED: Lost,
}
OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # a connection for each run
)
CONNECT_TIMEOUT_S = 10.0


class GrpcTarget:
    """Sends requests to `address`. `request_at(index)` returns the bytes of a ModelInferRequest.

    With `slo_ns`, the timeout of a call is what remains of it from the due time on, and a request is UNSENT if nothing
    remains.
    """

    cached = held_back = 0

    def __init__(
        self, address: str, request_at: Callable[[int], bytes], slo_ns: int, metadata: Metadata, secure: bool
    ) -> None:
        self._address, self._secure = address, secure
        self._request_at, self._slo_ns = request_at, slo_ns
        self._metadata = lower_names(metadata)
        self._on_answer: OnAnswer
        self._channel: Any
        self._infer: Any
        self._calls: set[asyncio.Task[None]] = set()

    async def start(self, clients: int, on_answer: OnAnswer) -> None:
        """Open one connection, which carries any number of requests in flight."""
        self._on_answer = on_answer
        self._channel = (
            aio.secure_channel(self._address, grpc.ssl_channel_credentials(), OPTIONS)
            if self._secure
            else aio.insecure_channel(self._address, OPTIONS)
        )
        self._infer = self._channel.unary_unary(f"/{SERVICE}/ModelInfer")
        await asyncio.wait_for(self._channel.channel_ready(), CONNECT_TIMEOUT_S)

    def send(self, index: int, due_ns: int) -> None:
        """See `Target`."""
        timeout_s = TIMEOUT_S
        if self._slo_ns:
            now_ns = time.monotonic_ns()
            timeout_s = (due_ns + self._slo_ns - now_ns) / 1e9
            if timeout_s <= 0:
                self._on_answer(index, now_ns, ClientOutcome.UNSENT, None)
                return
        task = asyncio.get_running_loop().create_task(self._call(index, timeout_s))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _call(self, index: int, timeout_s: float) -> None:
        try:
            answer: object = await self._infer(self._request_at(index), timeout=timeout_s, metadata=self._metadata)
            outcome = ClientOutcome.OK
        except aio.AioRpcError as error:
            outcome = OUTCOMES.get(error.code(), ClientOutcome.FAILED)
            answer = f"{error.code().name} {error.details()}"
        self._on_answer(index, time.monotonic_ns(), outcome, answer)

    async def stop(self) -> None:
        """See `ServerTarget`."""
        for task in self._calls:
            task.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        await self._channel.close()


def lower_names(metadata: Metadata) -> tuple[tuple[str, str], ...]:
    """Return metadata with names in lower case, which gRPC requires."""
    return tuple((name.lower(), value) for name, value in metadata)


def encode_request(spec: ModelSpec, tensors: Sequence[Tensor], payloads: Sequence[bytes]) -> bytes:
    """Return the bytes of a ModelInferRequest with raw contents."""
    request = ModelInferRequest(model_name=spec.name, model_version=spec.version)
    for tensor in tensors:
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    request.raw_input_contents.extend(payloads)
    content: bytes = request.SerializeToString()
    return content


def read_over_grpc(server: ModelServer) -> ModelSpec:
    """Return the signature of the model. Raises HorologeError."""
    request, answer = message_type("ModelMetadataRequest"), message_type("ModelMetadataResponse")
    channel = (
        grpc.secure_channel(server.address, grpc.ssl_channel_credentials(), OPTIONS)
        if server.url.scheme == "grpcs"
        else grpc.insecure_channel(server.address, OPTIONS)
    )
    with channel:
        call = channel.unary_unary(
            f"/{SERVICE}/ModelMetadata",
            request_serializer=request.SerializeToString,
            response_deserializer=answer.FromString,
        )
        question = request(name=server.model, version=server.version)
        try:
            metadata = call(question, timeout=CONNECT_TIMEOUT_S, metadata=lower_names(server.headers))
        except grpc.RpcError as error:
            kind = ERRORS.get(error.code(), InvalidInput)
            raise kind(f"ModelMetadata: {error.code().name}: {error.details()}") from error
    inputs, outputs = (
        tuple(TensorSpec(tensor.name, tensor.datatype, tuple(tensor.shape)) for tensor in tensors)
        for tensors in (metadata.inputs, metadata.outputs)
    )
    return ModelSpec(server.model, server.version, "", inputs, outputs)
