"""A gRPC server with a FakeGateway on a port of its own, and calls to it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from grpc import aio

from fakes.gateway import FakeGateway
from horologe_common.clock import s
from horologe_frontend.grpc.messages import SERVICE, ModelInferRequest, method_types
from horologe_frontend.grpc.server import GrpcServer
from horologe_frontend.grpc.settings import GrpcSettings
from horologe_frontend.http.client_accounts import ClientAccounts
from horologe_frontend.http.settings import HttpSettings
from horologe_frontend.oip.model_documents import ModelDocuments

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from horologe_frontend.core.access import KeyEntry
    from horologe_frontend.tls import Certificates

TYPES = method_types()
ROW = (b"\0\0\x80\x3f" * 4,)
"""The bytes of four ones, FP32."""


def infer_request(
    model: str = "echo", raw: Any = ROW, shape: Any = (1, 4), datatype: str = "FP32", **fields: Any
) -> Any:
    """Return a request with one input `in`. `fields`: further fields; parameters by name with their values."""
    parameters = fields.pop("parameters", {})
    request = ModelInferRequest(model_name=model, raw_input_contents=raw, **fields)
    if not request.inputs:
        request.inputs.add(name="in", datatype=datatype, shape=shape)
    for name, value in parameters.items():
        set_parameter(request.parameters[name], value)
    return request


def set_parameter(parameter: Any, value: Any) -> None:
    kinds = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
    setattr(parameter, kinds[type(value)], value)


class GrpcDoor(NamedTuple):
    """A running server. `channel` is connected to it."""

    server: GrpcServer
    gateway: FakeGateway
    clients: ClientAccounts
    channel: aio.Channel

    async def call(self, method: str, request: Any = None, **options: Any) -> Any:
        """Return the response of a method other than ModelStreamInfer. Raises `AioRpcError`."""
        request_type, reply_type = TYPES[method]
        call = self.channel.unary_unary(f"/{SERVICE}/{method}", request_type.SerializeToString, reply_type.FromString)
        return await call(request_type() if request is None else request, **options)

    def stream(self, **options: Any) -> Any:
        """Open a ModelStreamInfer."""
        request_type, reply_type = TYPES["ModelStreamInfer"]
        return self.channel.stream_stream(
            f"/{SERVICE}/ModelStreamInfer", request_type.SerializeToString, reply_type.FromString
        )(**options)

    async def failure(self, method: str, request: Any = None, **options: Any) -> aio.AioRpcError:
        """Return the error with which a call ends."""
        try:
            response = await self.call(method, request, **options)
        except aio.AioRpcError as error:
            return error
        raise AssertionError(f"got {response}, wanted an error")


@asynccontextmanager
async def open_door(
    grpc: GrpcSettings | None = None,
    drain_ns: int = s(5),
    channel: Any = None,
    keys: Mapping[str, KeyEntry] | None = None,
    certificates: Certificates | None = None,
    **http: Any,
) -> AsyncIterator[GrpcDoor]:
    """Serve a FakeGateway until the end of the block. At the end, no account may hold anything. `http`: settings."""
    settings, gateway = HttpSettings(**http), FakeGateway()
    if keys is not None:
        gateway.core.access.replace_keys(keys)
    clients = ClientAccounts(settings)
    documents = ModelDocuments(gateway, gateway.is_ready, "1.2.3")
    settings_of_grpc = grpc or GrpcSettings(port=0)
    server = GrpcServer(settings_of_grpc, settings, gateway, clients, documents, certificates, drain_ns=drain_ns)
    await server.start()
    try:
        async with channel(server.address) if channel else aio.insecure_channel(server.address) as opened:
            yield GrpcDoor(server, gateway, clients, opened)
    finally:
        await server.stop()
    total = clients.total
    assert (total.requests, total.held_bytes, total.connections) == (0, 0, 0)
