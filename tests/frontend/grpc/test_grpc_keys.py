"""Keys over gRPC: the scope of each method and of each request of a stream, rates, and the audit log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.rpc import error_details_pb2
from grpc import StatusCode, aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2_grpc
from grpc_status import rpc_status

from fakes.key_entries import entry
from frontend.grpc_calls import ROW, TYPES, GrpcDoor, infer_request, open_door
from harness.event_loop import in_loop
from horologe_frontend.grpc.messages import SERVICE, ModelInferRequest, ModelStreamInferResponse

if TYPE_CHECKING:
    import pytest


def bearer(key: str) -> dict[str, Any]:
    return {"metadata": (("authorization", f"Bearer {key}"),)}


@in_loop
async def test_keys() -> None:
    load = TYPES["RepositoryModelLoad"][0](model_name="echo")
    entries = {"client": entry("client", infer=("*",), observe=True), "manager": entry("manager", manage=True)}
    async with open_door(keys=entries) as door:
        for options in ({}, bearer("wrong"), {"metadata": (("authorization", "client"),)}):
            for method in ("ModelInfer", "ServerMetadata", "RepositoryModelLoad"):
                error = await door.failure(method, infer_request() if method == "ModelInfer" else None, **options)
                assert (error.code(), error.details()) == (StatusCode.UNAUTHENTICATED, "unauthenticated")
            stream = door.stream(**options)
            assert await stream.code() is StatusCode.UNAUTHENTICATED
            # without a request: a client that still writes when its call ends may report INTERNAL instead
            refused = reflection_pb2_grpc.ServerReflectionStub(door.channel).ServerReflectionInfo(**options)
            assert await refused.code() is StatusCode.UNAUTHENTICATED
        assert (await door.call("ServerLive")).live
        assert (await door.call("ServerReady")).ready
        assert (await health_pb2_grpc.HealthStub(door.channel).Check(health_pb2.HealthCheckRequest())).status == 1
        assert (await door.call("ModelInfer", infer_request(), **bearer("client"))).model_name == "echo"
        assert (
            await door.failure("RepositoryModelLoad", load, **bearer("client"))
        ).code() is StatusCode.PERMISSION_DENIED
        assert (await door.call("RepositoryModelLoad", load, **bearer("manager"))).isLoaded
        assert door.gateway.clients == ["client"]


@in_loop
async def test_each_method_needs_its_scope(caplog: pytest.LogCaptureFixture) -> None:
    entries = {
        "user": entry("user", infer=("ec*",)),
        "viewer": entry("viewer", observe=True),
        "manager": entry("manager", manage=True),
    }
    everyone = set(entries)
    named: dict[str, dict[str, set[str]]] = {
        "ModelInfer": {"echo": {"user"}, "slow": set(), "unknown": set(), "texts": set(), "": set()},
        "ModelMetadata": {"echo": {"user", "viewer"}, "slow": {"viewer"}, "unknown": {"viewer"}},
        "ModelConfig": {"echo": {"user", "viewer"}, "slow": {"viewer"}},
        "ModelReady": {"echo": {"user", "viewer"}, "slow": {"viewer"}, "unknown": {"viewer"}},
        "ModelStatistics": {"echo": {"viewer"}, "": {"viewer"}},
        "RepositoryIndex": {"": {"viewer"}},
        "RepositoryModelLoad": {"echo": {"manager"}},
        "RepositoryModelUnload": {"echo": {"manager"}},
        "ServerMetadata": {"": everyone},
    }
    named |= {method: {"": everyone} for method in TYPES if "SharedMemory" in method or "Setting" in method}
    assert set(named) == set(TYPES) - {"ServerLive", "ServerReady", "ModelStreamInfer"}
    async with open_door(keys=entries) as door:
        for method, targets in named.items():
            for target, permitted in targets.items():
                request = infer_request(target) if method == "ModelInfer" else TYPES[method][0]()
                field = "model_name" if "Repository" in method else "name"
                if target and method != "ModelInfer":
                    setattr(request, field, target)
                got = {name for name in entries if await may_call(door, method, request, name)}
                assert got == permitted, (method, target)
        assert {predict.model for predict in door.gateway.predicts} == {"echo"}
    audit = [record.fields for record in caplog.records if record.name == "horologe.audit"]  # type: ignore[attr-defined]
    assert [(line["client"], line["call"], line["outcome"]) for line in audit] == [
        (client, call, "OK" if client == "manager" else "FORBIDDEN")
        for call in ("load", "unload")
        for client in entries
    ]
    assert {(line["door"], line["target"]) for line in audit} == {("grpc", "echo")}


@in_loop
async def test_the_audit_log_names_versions(caplog: pytest.LogCaptureFixture) -> None:
    canary = TYPES["RepositoryModelLoad"][0](model_name="echo")
    canary.parameters["canary"].string_param = "9"
    canary.parameters["weight"].string_param = "0.1"
    promotion = TYPES["RepositoryModelLoad"][0](model_name="echo")
    promotion.parameters["promote"].string_param = ""
    async with open_door() as door:
        for request in (canary, promotion):
            await door.call("RepositoryModelLoad", request)
    audit = [record.fields for record in caplog.records if record.name == "horologe.audit"]  # type: ignore[attr-defined]
    assert [(line["call"], line["version"], line["weight"]) for line in audit] == [
        ("canary", "9", 0.1),
        ("promote", "10", 0.0),
    ]


async def may_call(door: GrpcDoor, method: str, request: Any, key: str) -> bool:
    try:
        await door.call(method, request, **bearer(key))
    except aio.AioRpcError as error:
        return error.code() is not StatusCode.PERMISSION_DENIED
    return True


@in_loop
async def test_each_request_of_a_stream_is_checked() -> None:
    async with open_door(keys={"user": entry("user", infer=("echo",)), "slow": entry("slow", rate=0.01)}) as door:
        stream = door.channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")(**bearer("user"))  # of bytes

        async def ask(request: Any) -> str:
            await stream.write(request if isinstance(request, bytes) else request.SerializeToString())
            return str(ModelStreamInferResponse.FromString(await stream.read()).error_message)

        assert await ask(infer_request()) == ""
        assert "FORBIDDEN: the key 'user' does not permit infer on 'slow'" in await ask(infer_request("slow"))
        assert await ask(infer_request()) == ""
        known = infer_request().SerializeToString()
        begin, other = known[: -len(ROW[0])], ModelInferRequest(model_name="slow").SerializeToString()
        hidden = begin + bytes(len(ROW[0]) - len(other)) + other
        assert "FORBIDDEN" not in await ask(hidden)  # all of it is the tensor
        split = begin[:-1] + bytes([len(ROW[0]) - len(other)]) + hidden[len(begin) :]
        assert (len(split), ModelInferRequest.FromString(split).model_name) == (len(known), "slow")
        assert "FORBIDDEN: the key 'user' does not permit infer on 'slow'" in await ask(split)
        entries = {"user": entry("user", infer=("echo",), rate=0.01), "slow": entry("slow")}
        door.gateway.core.access.replace_keys(entries)
        assert await ask(infer_request()) == ""
        assert "REFUSED: the key 'user' has sent more than 0.01 requests per second" in await ask(infer_request())
        door.gateway.core.access.replace_keys({"slow": entry("slow")})
        assert "UNAUTHENTICATED" in await ask(infer_request())
        await stream.done_writing()


@in_loop
async def test_a_rate_that_is_exceeded_has_a_retry_info() -> None:
    async with open_door(keys={"a": entry("a", infer=("*",), rate=0.01)}) as door:
        assert (await door.call("ModelInfer", infer_request(), **bearer("a"))).model_name == "echo"
        for method, request in (("ModelInfer", infer_request()), ("ServerMetadata", None)):
            error = await door.failure(method, request, **bearer("a"))
            assert error.code() is StatusCode.RESOURCE_EXHAUSTED
            status = rpc_status.from_call(error)
            retry = error_details_pb2.RetryInfo()
            assert status.details[0].Unpack(retry)
            assert 90 < retry.retry_delay.seconds <= 100
