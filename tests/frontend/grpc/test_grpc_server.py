"""The gRPC server on real sockets, with a fake gateway: methods, errors, keys, limits, streams, health, shutdown."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from google.rpc import error_details_pb2
from grpc import StatusCode, aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

from fakes.gateway import FLOATS, a_model
from frontend.grpc_calls import ROW, TYPES, GrpcDoor, infer_request, open_door
from harness.event_loop import in_loop
from horologe_common.clock import ms
from horologe_common.service.settings import SettingsError
from horologe_common.status import InvalidInput
from horologe_common.wire import Admit, ModelState
from horologe_frontend.core.access import Access
from horologe_frontend.grpc.calls import Calls, peer_host
from horologe_frontend.grpc.infer_stream import STREAM_REQUESTS, InferStream
from horologe_frontend.grpc.messages import SERVICE
from horologe_frontend.grpc.settings import GrpcSettings
from horologe_frontend.http.client_accounts import ClientAccounts, HeldBytes
from horologe_frontend.http.settings import HttpSettings

if TYPE_CHECKING:
    from collections.abc import Callable


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition is true."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - a test may wait for any state
            await asyncio.sleep(0.005)


class CancelledAtRead:
    """Context of a call that is cancelled while its first message is read."""

    task: asyncio.Task[None]
    metadata = ()

    async def read(self) -> bytes:
        if self.task.cancelling():
            await asyncio.Event().wait()
        self.task.cancel()
        return b""


class LostAtWrite:
    """Context of a call with one message, whose client leaves before the response."""

    def __init__(self) -> None:
        self.messages = [b"", None]
        self.metadata = ()

    async def read(self) -> Any:
        return self.messages.pop(0)

    async def write(self, message: bytes) -> None:
        raise ConnectionError


def trailer(error: aio.AioRpcError, name: str) -> Any:
    return {item[0]: item[1] for item in error.trailing_metadata()}.get(name)


@in_loop
async def test_a_prediction() -> None:
    async with open_door() as door:
        for version in ("", "9"):
            response = await door.call("ModelInfer", infer_request(id="mine", model_version=version))
            assert list(response.raw_output_contents) == list(ROW)
            assert (response.id, response.model_version) == ("mine", version or "10")
        typed = infer_request(raw=())
        typed.inputs[0].contents.fp32_contents.extend([1, 1, 1, 1])
        assert list((await door.call("ModelInfer", typed)).raw_output_contents) == list(ROW)
        assert door.gateway.clients == ["127.0.0.1"] * 3


@in_loop
async def test_many_calls_at_once_get_their_own_answers() -> None:
    async with open_door() as door:
        requests = [infer_request(id=str(number), raw=(bytes([number]) * 16,)) for number in range(100)]
        for number, response in enumerate(await asyncio.gather(*[door.call("ModelInfer", one) for one in requests])):
            assert (response.id, response.raw_output_contents[0]) == (str(number), bytes([number]) * 16)


@in_loop
async def test_descriptions_are_those_of_http() -> None:
    async with open_door() as door:
        assert (await door.call("ServerLive")).live
        assert (await door.call("ServerReady")).ready
        server = await door.call("ServerMetadata")
        assert (server.name, server.version) == ("horologe", "1.2.3")
        named = TYPES["ModelMetadata"][0](name="echo")
        metadata = await door.call("ModelMetadata", named)
        assert list(metadata.versions) == ["1", "9", "10"]
        assert list(metadata.inputs[0].shape) == [-1, 4]
        config = (await door.call("ModelConfig", TYPES["ModelConfig"][0](name="echo"))).config
        assert (config.max_batch_size, list(config.input[0].dims)) == (8, [4])
        assert config.parameters["slo_ns"].string_value == "50000000"
        await door.call("ModelInfer", infer_request())
        statistics = await door.call("ModelStatistics", TYPES["ModelStatistics"][0](name="echo", version="10"))
        assert statistics.model_stats[0].inference_stats.success.count == 1
        assert len((await door.call("ModelStatistics")).model_stats) > 5
        index = await door.call("RepositoryIndex")
        assert {model.state for model in index.models} == {"READY", "UNAVAILABLE"}
        ready = await door.call("RepositoryIndex", TYPES["RepositoryIndex"][0](ready=True))
        assert {model.state for model in ready.models} == {"READY"}


@in_loop
async def test_config_names_optional_inputs_and_files_of_labels() -> None:
    async with open_door() as door:
        spec = msgspec.structs.replace(
            a_model("echo", FLOATS), optional=("in",), labels=(("a",),), label_files=("l.txt",)
        )
        door.gateway.core.catalogue.replace_models([ModelState(spec)])
        config = (await door.call("ModelConfig", TYPES["ModelConfig"][0](name="echo"))).config
        assert (config.input[0].optional, config.output[0].label_filename) == (True, "l.txt")


@pytest.mark.parametrize(("model", "ready"), [("echo", True), ("gone", False), ("nope", False)])
@in_loop
async def test_model_ready(model: str, ready: bool) -> None:
    async with open_door() as door:
        assert (await door.call("ModelReady", TYPES["ModelReady"][0](name=model))).ready is ready
        door.gateway.ready = False
        assert not (await door.call("ModelReady", TYPES["ModelReady"][0](name=model))).ready
        assert not (await door.call("ServerReady")).ready


@pytest.mark.parametrize("field", ["model_name", "repository_name"])
@in_loop
async def test_load_and_unload_for_clients_of_triton_and_of_kserve(field: str) -> None:
    """KServe has the name of the model in the field in which Triton has the name of the repository."""
    async with open_door() as door:
        loaded = await door.call("RepositoryModelLoad", TYPES["RepositoryModelLoad"][0](**{field: "echo"}))
        assert (loaded.model_name, loaded.isLoaded) == ("echo", True)
        unload = TYPES["RepositoryModelUnload"][0](**{field: "echo"})
        unload.parameters["unload_dependents"].bool_param = False
        assert (await door.call("RepositoryModelUnload", unload)).isUnloaded
        canary = TYPES["RepositoryModelLoad"][0](model_name="echo")
        canary.parameters["canary"].string_param = "2"
        canary.parameters["weight"].string_param = "0.1"
        assert (await door.call("RepositoryModelLoad", canary)).isLoaded
        rollout = Admit(0, "echo", "2", True, "canary", 0.1)
        assert door.gateway.calls == [Admit(0, "echo", "", True), Admit(0, "echo", "", False), rollout]
        error = await door.failure("RepositoryModelLoad", TYPES["RepositoryModelLoad"][0](model_name="nope"))
        assert error.code() is StatusCode.NOT_FOUND
        with_config = TYPES["RepositoryModelLoad"][0](model_name="echo")
        with_config.parameters["config"].string_param = "{}"
        error = await door.failure("RepositoryModelLoad", with_config)
        assert error.code() is StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("method", [name for name in TYPES if "SharedMemory" in name or "Setting" in name])
@in_loop
async def test_what_is_not_supported_says_so(method: str) -> None:
    async with open_door() as door:
        error = await door.failure(method)
        assert error.code() is StatusCode.UNIMPLEMENTED
        assert "not supported" in (error.details() or "")
        assert trailer(error, "horologe-status") == "NOT_IMPLEMENTED"


@pytest.mark.parametrize(
    ("model", "code", "status"),
    [
        ("nope", StatusCode.NOT_FOUND, "UNKNOWN_MODEL"),
        ("gone", StatusCode.NOT_FOUND, "UNKNOWN_MODEL"),
        ("refused", StatusCode.RESOURCE_EXHAUSTED, "REFUSED"),
        ("too-large", StatusCode.RESOURCE_EXHAUSTED, "TOO_LARGE"),
        ("late", StatusCode.DEADLINE_EXCEEDED, "LATE"),
        ("lost", StatusCode.UNAVAILABLE, "LOST"),
        ("failed", StatusCode.INTERNAL, "FAILED"),
        ("broken", StatusCode.INTERNAL, "INTERNAL_SERVER_ERROR"),
    ],
)
@in_loop
async def test_errors(model: str, code: StatusCode, status: str) -> None:
    async with open_door() as door:
        error = await door.failure("ModelInfer", infer_request(model))
        assert error.code() is code
        assert trailer(error, "horologe-status") == status
        assert "a fault of ours" not in (error.details() or "")
        assert (error.details() == "model 'gone/1' is unavailable: unloaded") == (model == "gone")
        details = rpc_status.from_call(error)
        assert (details is not None) == (status in ("REFUSED", "LOST"))


@in_loop
async def test_a_refusal_says_when_to_retry() -> None:
    async with open_door() as door:
        error = await door.failure("ModelInfer", infer_request("refused"))
        details = rpc_status.from_call(error)
        retry = error_details_pb2.RetryInfo()
        assert details.details[0].Unpack(retry)
        assert retry.retry_delay.ToNanoseconds() == 1_500_000
        assert (details.code, details.message) == (StatusCode.RESOURCE_EXHAUSTED.value[0], error.details())


@pytest.mark.parametrize("content", [b"\xff", b"\x0a\x05ab", b"junk" * 100])
@in_loop
async def test_bytes_that_are_no_message_are_invalid(content: bytes) -> None:
    async with open_door() as door:
        with pytest.raises(aio.AioRpcError) as caught:
            await door.channel.unary_unary(f"/{SERVICE}/ModelInfer")(content)
        assert caught.value.code() is StatusCode.INVALID_ARGUMENT


@in_loop
async def test_a_call_without_a_message_is_invalid() -> None:
    async with open_door() as door:
        with pytest.raises(aio.AioRpcError) as caught:
            await door.channel.stream_unary(f"/{SERVICE}/ModelInfer")(iter(()))
        assert caught.value.code() is StatusCode.INVALID_ARGUMENT


@in_loop
async def test_an_unknown_method_is_unimplemented() -> None:
    async with open_door() as door:
        with pytest.raises(aio.AioRpcError) as caught:
            await door.channel.unary_unary(f"/{SERVICE}/Nope")(b"")
        assert caught.value.code() is StatusCode.UNIMPLEMENTED


@in_loop
async def test_a_huge_message_is_refused() -> None:
    async with open_door(body_limit_bytes=100_000) as door:
        request = infer_request("huge", raw=(bytes(200_000),), datatype="UINT8", shape=(200_000,))
        assert (await door.failure("ModelInfer", request)).code() is StatusCode.RESOURCE_EXHAUSTED
        assert (await door.call("ModelInfer", infer_request())).model_name == "echo"


@in_loop
async def test_bytes_in_memory_are_limited() -> None:
    async with open_door(held_limit_bytes=300_000) as door:
        request = infer_request("huge", raw=(bytes(200_000),), datatype="UINT8", shape=(200_000,))
        error = await door.failure("ModelInfer", request)
        assert trailer(error, "horologe-status") == "TOO_LARGE"


@in_loop
async def test_a_large_response_counts_until_it_is_sent() -> None:
    async with open_door() as door:
        request = infer_request("huge", raw=(bytes(200_000),), datatype="UINT8", shape=(200_000,))
        response = await door.call("ModelInfer", request)
        assert len(response.raw_output_contents[0]) == 200_000
        await until(lambda: door.clients.total.held_bytes == 0)


@in_loop
async def test_a_cancelled_call_cancels_its_request() -> None:
    async with open_door() as door:
        tasks = [asyncio.create_task(door.call("ModelInfer", infer_request("slow"))) for _ in range(3)]
        await until(lambda: len(door.gateway.predicts) == 3)
        for task in tasks:
            task.cancel()
        await until(lambda: door.gateway.cancelled == 3)
        await until(lambda: door.clients.total.requests == 0)


@in_loop
async def test_calls_that_end_at_any_moment_leave_nothing() -> None:
    async with open_door() as door:
        content = infer_request("slow").SerializeToString()
        call = door.channel.unary_unary(f"/{SERVICE}/ModelInfer")
        for wait_us in range(0, 2000, 20):
            pending = [call(content, timeout=wait_us / 1e6) for _ in range(4)]
            await asyncio.sleep(wait_us / 1e6)
            for one in pending[:2]:
                one.cancel()
        await until(lambda: door.clients.total.requests == 0)
        assert not door.server.calls.count
        door.gateway.slow_answers.set()
        assert (await door.call("ModelInfer", infer_request())).model_name == "echo"


@in_loop
async def test_an_expired_deadline_cancels_the_request() -> None:
    async with open_door() as door:
        error = await door.failure("ModelInfer", infer_request("slow"), timeout=0.2)
        assert error.code() is StatusCode.DEADLINE_EXCEEDED
        await until(lambda: door.gateway.cancelled == 1)
        assert 0 < door.gateway.predicts[0].budget_ns <= 50_000_000  # the SLO of the model is earlier


@in_loop
async def test_calls_in_flight_are_limited_for_each_client() -> None:
    async with open_door(max_requests=4) as door:  # one client may have half
        tasks = [asyncio.create_task(door.call("ModelInfer", infer_request("slow"))) for _ in range(2)]
        await until(lambda: len(door.gateway.predicts) == 2)
        async with aio.insecure_channel(door.server.address, (("grpc.use_local_subchannel_pool", 1),)) as second:
            other = door._replace(channel=second)
            error = await other.failure("ModelInfer", infer_request())
            assert error.code() is StatusCode.RESOURCE_EXHAUSTED
            assert trailer(error, "horologe-status") == "REFUSED"
            assert rpc_status.from_call(error) is not None
        door.gateway.slow_answers.set()
        await asyncio.gather(*tasks)
        await door.call("ModelInfer", infer_request())


@in_loop
async def test_a_message_that_does_not_arrive_ends_its_call() -> None:
    async with open_door(body_timeout_ns=ms(50)) as door:
        call = door.channel.stream_unary(f"/{SERVICE}/ModelInfer")()
        with pytest.raises(aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is StatusCode.DEADLINE_EXCEEDED
        assert "did not arrive in time" in (caught.value.details() or "")


def health_of(door: GrpcDoor) -> Any:
    return health_pb2_grpc.HealthStub(door.channel)


async def reflect(door: GrpcDoor, **options: Any) -> Any:
    """Return the names of the services."""
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    call = reflection_pb2_grpc.ServerReflectionStub(door.channel).ServerReflectionInfo(iter([request]), **options)
    return [service.name async for response in call for service in response.list_services_response.service]


@in_loop
async def test_reflection_describes_every_service() -> None:
    async with open_door() as door:
        names = await reflect(door)
        assert SERVICE in names
        for version in ("v1", "v1alpha"):
            path = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
            call = door.channel.stream_stream(
                path,
                reflection_pb2.ServerReflectionRequest.SerializeToString,
                reflection_pb2.ServerReflectionResponse.FromString,
            )
            requests = [reflection_pb2.ServerReflectionRequest(file_containing_symbol=name) for name in names]
            answers = [answer async for answer in call(iter(requests))]
            assert all(answer.HasField("file_descriptor_response") for answer in answers)


@in_loop
async def test_health_follows_the_readiness() -> None:
    async with open_door() as door:
        health, serving = health_of(door), health_pb2.HealthCheckResponse
        watch = health.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert (await watch.read()).status == serving.SERVING
        door.gateway.ready = False
        for name in ("", SERVICE):
            check = await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert check.status == serving.NOT_SERVING
        assert (await watch.read()).status == serving.NOT_SERVING
        with pytest.raises(aio.AioRpcError) as caught:
            await health.Check(health_pb2.HealthCheckRequest(service="nope"))
        assert caught.value.code() is StatusCode.NOT_FOUND


@in_loop
async def test_a_stream_answers_each_request_once_in_order() -> None:
    async with open_door() as door:
        stream = door.stream()
        models = ["slow", "echo", "nope", "echo", "refused", "echo"]
        for number, model in enumerate(models):
            await stream.write(infer_request(model, id=str(number), raw=(bytes([number]) * 16,)))
        await until(lambda: len(door.gateway.predicts) == 5)  # all run, although the first one is not answered
        door.gateway.slow_answers.set()
        responses = [await stream.read() for _ in models]
        assert [response.infer_response.id for response in responses] == [str(number) for number in range(6)]
        assert [response.error_message.partition(":")[0] for response in responses] == [
            "", "", "UNKNOWN_MODEL", "", "REFUSED", "",
        ]  # fmt: skip
        assert responses[5].infer_response.raw_output_contents[0] == bytes([5]) * 16
        await stream.done_writing()
        assert await stream.read() is aio.EOF
        assert await stream.code() is StatusCode.OK


@in_loop
async def test_a_stream_may_end_with_the_status_of_an_error() -> None:
    async with open_door() as door:
        stream = door.stream(metadata=(("triton_grpc_error", "true"),))
        await stream.write(infer_request())
        assert (await stream.read()).error_message == ""
        await stream.write(infer_request("refused"))
        assert await stream.code() is StatusCode.RESOURCE_EXHAUSTED


@in_loop
async def test_a_stream_reads_no_more_than_it_may_run() -> None:
    async with open_door() as door:
        stream = door.stream()

        async def write() -> None:
            for _ in range(3 * STREAM_REQUESTS):
                await stream.write(infer_request("slow"))
            await stream.done_writing()

        writing = asyncio.create_task(write())
        await until(lambda: len(door.gateway.predicts) == STREAM_REQUESTS)
        await asyncio.sleep(0.05)
        assert len(door.gateway.predicts) == STREAM_REQUESTS
        door.gateway.slow_answers.set()
        assert len([response async for response in stream]) == 3 * STREAM_REQUESTS
        await writing


@in_loop
async def test_requests_of_a_stream_count_for_their_client() -> None:
    async with open_door(max_requests=8) as door:  # one client may have four: the stream and three requests
        stream = door.stream()
        for number in range(5):
            await stream.write(infer_request("slow", id=str(number)))
        await until(lambda: any(len(one.open) == 5 for one in door.server.calls.streams))
        await until(lambda: len(door.gateway.predicts) == 3)
        door.gateway.slow_answers.set()
        errors = [(await stream.read()).error_message for _ in range(5)]
        assert [error.partition(":")[0] for error in errors] == ["", "", "", "REFUSED", "REFUSED"]
        await stream.done_writing()


@in_loop
async def test_a_cancelled_stream_cancels_its_requests() -> None:
    async with open_door() as door:
        stream = door.stream()
        for _ in range(3):
            await stream.write(infer_request("slow"))
        await until(lambda: len(door.gateway.predicts) == 3)
        stream.cancel()
        await until(lambda: door.gateway.cancelled == 3)
        await until(lambda: door.clients.total.requests == 0)


@in_loop
async def test_a_request_that_arrives_while_its_stream_is_cancelled_is_not_counted_for_ever() -> None:
    account = ClientAccounts(HttpSettings()).begin_call("127.0.0.1")
    assert account is not None
    context, calls = CancelledAtRead(), Calls(Access(), ClientAccounts(HttpSettings()), HttpSettings())
    call: Any = SimpleNamespace(rpc=context, held=HeldBytes(account), client="client")
    inferences: Any = None
    context.task = asyncio.create_task(InferStream(call, inferences).serve(calls))
    await asyncio.wait([context.task])
    assert account.requests == 1, "of the call itself"


@in_loop
async def test_a_client_that_leaves_before_its_response_is_no_error_of_the_server() -> None:
    accounts = ClientAccounts(HttpSettings())
    account = accounts.begin_call("127.0.0.1")
    assert account is not None
    call: Any = SimpleNamespace(rpc=LostAtWrite(), held=HeldBytes(account), client="client")

    async def read(*_: Any) -> None:
        raise InvalidInput("no request")

    inferences: Any = SimpleNamespace(read=read)
    serving = asyncio.create_task(InferStream(call, inferences).serve(Calls(Access(), accounts, HttpSettings())))
    await asyncio.wait([serving])
    assert serving.cancelled()
    assert account.requests == 1


@in_loop
async def test_a_shutdown_finishes_calls_and_ends_streams() -> None:
    async with open_door() as door:
        call = asyncio.create_task(door.call("ModelInfer", infer_request("slow")))
        stream, idle = door.stream(), door.stream()
        await stream.write(infer_request("slow"))
        await idle.write(infer_request())
        assert (await idle.read()).error_message == ""
        watch = health_of(door).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        reflection = reflection_pb2_grpc.ServerReflectionStub(door.channel).ServerReflectionInfo()
        await reflection.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        await reflection.read()
        await until(lambda: len(door.gateway.predicts) == 3)
        stopping = asyncio.create_task(door.server.stop())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert await idle.code() is StatusCode.UNAVAILABLE
        assert not stopping.done()
        door.gateway.slow_answers.set()
        assert (await call).model_name == "slow"
        assert (await stream.read()).infer_response.model_name == "slow"
        assert await stream.code() is StatusCode.UNAVAILABLE
        await stopping


@in_loop
async def test_a_shutdown_cancels_what_takes_too_long() -> None:
    async with open_door(drain_ns=ms(100)) as door:
        call = asyncio.create_task(door.failure("ModelInfer", infer_request("slow")))
        await until(lambda: len(door.gateway.predicts) == 1)
        await door.server.stop()
        assert (await call).code() in (StatusCode.UNAVAILABLE, StatusCode.CANCELLED)
        assert door.gateway.cancelled == 1


def test_an_address_in_use_is_an_error_of_the_settings() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        async def start() -> None:
            async with open_door(GrpcSettings(port=port)):
                pass

        with pytest.raises(SettingsError, match=rf"settings grpc.host, grpc.port: 127.0.0.1:{port}"):
            asyncio.run(start())


@pytest.mark.parametrize(
    ("peer", "host"),
    [("ipv4:10.0.0.1:55000", "10.0.0.1"), ("ipv6:%5B::1%5D:55000", "::1"), ("unix:", "unix"), ("", "")],
)
def test_the_address_of_a_peer(peer: str, host: str) -> None:
    assert peer_host(peer) == host
