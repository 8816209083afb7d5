"""Calls of a client of Triton: `python triton_calls.py http|http.aio|grpc|grpc.aio ADDRESS`."""

from __future__ import annotations

import asyncio
import base64
import importlib
import queue
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from system.clients.client_calls import Calls

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)
WORDS = np.array([b"cat", "d\xf6g".encode()], object)
LONG_WORDS = np.array([bytes(4096)], object)
HANDLE = base64.b64encode(bytes(64))
WITHOUT_REQUEST = ("close", "plugin", "register_plugin", "unregister_plugin")


class TritonCalls:
    """The calls of one client. `kind`: its module in `tritonclient`."""

    def __init__(self, kind: str, client: Any) -> None:
        self.module: Any = importlib.import_module(f"tritonclient.{kind.removesuffix('.aio')}")
        self.client = client
        self.is_http, self.is_aio = kind.startswith("http"), kind.endswith("aio")
        self.calls = Calls("tritonclient")

    def tensor(self, values: Any = ROWS, datatype: str = "FP32", **options: Any) -> Any:
        tensor = self.module.InferInput("x", list(values.shape), datatype)
        tensor.set_data_from_numpy(values, **options)
        return tensor

    def output(self, **options: Any) -> Any:
        return self.module.InferRequestedOutput("y", **options)

    async def infer(self, label: str, wanted: Any = ROWS, model: str = "echo", **options: Any) -> None:
        """Call `infer`, whose output `y` is as wanted."""
        inputs = options.pop("inputs", None) or [self.tensor()]
        call = lambda: self.client.infer(model, inputs, **options)  # noqa: E731 - `passes` calls it
        await self.calls.passes(f"infer({label})", call, lambda result: equals(result.as_numpy("y"), wanted))

    async def describe(self) -> None:
        client, passes = self.client, self.calls.passes
        await passes("is_server_live()", client.is_server_live, bool)
        await passes("is_server_ready()", client.is_server_ready, bool)
        await passes('is_model_ready("echo")', lambda: client.is_model_ready("echo"), bool)
        await passes('is_model_ready("echo", "1")', lambda: client.is_model_ready("echo", "1"), bool)
        await passes('is_model_ready("unknown")', lambda: client.is_model_ready("unknown"), lambda ready: not ready)
        form: Any = {} if self.is_http else {"as_json": True}
        await passes(
            "get_server_metadata()",
            lambda: client.get_server_metadata(**form),
            lambda server: server["name"] == "horologe",
        )
        await passes(
            'get_model_metadata("echo")',
            lambda: client.get_model_metadata("echo", **form),
            lambda model: [int(size) for size in model["inputs"][0]["shape"]] == [-1, 4],
        )
        await passes(
            'get_model_config("echo")',
            lambda: client.get_model_config("echo", **form),
            lambda config: config.get("config", config)["max_batch_size"] == 2,
        )
        await passes(
            "get_model_repository_index()",
            lambda: client.get_model_repository_index(**form),
            lambda index: (
                {"name": "echo", "version": "1", "state": "READY"}.items() <= models_of(index)["echo"].items()
            ),
        )
        for label, arguments, count in (("", (), 4), ('"echo"', ("echo",), 1)):
            await passes(
                f"get_inference_statistics({label})",
                lambda arguments=arguments: client.get_inference_statistics(*arguments, **form),  # type: ignore[misc]
                lambda statistics, count=count: len(statistics["model_stats"]) == count,  # type: ignore[misc]
            )

    async def load(self) -> None:
        client, passes = self.client, self.calls.passes
        await passes('unload_model("spare")', lambda: client.unload_model("spare"))
        await passes('load_model("spare")', lambda: client.load_model("spare"))
        await passes(
            'unload_model("spare", unload_dependents=True)',
            lambda: client.unload_model("spare", unload_dependents=True),
        )
        await passes('load_model("spare"), again', lambda: client.load_model("spare"))

    async def infer_in_many_ways(self) -> None:
        await self.infer("FP32")
        await self.infer("BYTES", WORDS, "text", inputs=[self.tensor(WORDS, "BYTES")])
        halves = ROWS.astype(np.float16)
        await self.infer("FP16", halves, "half", inputs=[self.tensor(halves, "FP16")])
        await self.infer("BYTES, 4 kB", LONG_WORDS, "text", inputs=[self.tensor(LONG_WORDS, "BYTES")])
        await self.infer('model_version="1"', model_version="1")
        await self.infer("outputs=[…]", outputs=[self.output()])
        classes = np.array([[b"3.000000:3"], [b"7.000000:3"]], object)
        await self.infer("outputs=[…class_count=1]", classes, outputs=[self.output(class_count=1)])
        await self.calls.passes(
            'infer(request_id="mine")',
            lambda: self.client.infer("echo", [self.tensor()], request_id="mine"),
            lambda result: id_of(result.get_response()) == "mine",
        )
        await self.infer("timeout=5_000_000", timeout=5_000_000)
        await self.infer("priority=1", priority=1)
        await self.infer('parameters={"slo_ms": 5000}', parameters={"slo_ms": 5000})
        await self.infer("headers={…}", headers={"x": "y"})
        if self.is_http:
            await self.infer_over_http()
        else:
            await self.infer("client_timeout=5", client_timeout=5)
            await self.infer('compression_algorithm="gzip"', compression_algorithm="gzip")
            await (self.stream_aio() if self.is_aio else self.stream())
        if not self.is_aio:
            await self.calls.passes(
                "async_infer()", self.infer_async, lambda result: equals(result.as_numpy("y"), ROWS)
            )

    async def infer_over_http(self) -> None:
        plain: Any = {"inputs": [self.tensor(binary_data=False)], "outputs": [self.output(binary_data=False)]}
        await self.infer("FP32, binary_data=False", **plain)
        words = [self.tensor(WORDS, "BYTES", binary_data=False)]
        await self.infer("BYTES, binary_data=False", WORDS, "text", inputs=words)
        await self.infer("query_params={…}", query_params={"x": "y"})
        for packing in ("gzip", "deflate"):
            await self.infer(f'request_compression_algorithm="{packing}"', request_compression_algorithm=packing)
            await self.infer(f'response_compression_algorithm="{packing}"', response_compression_algorithm=packing)
        kind = type(self.client)
        body, size = kind.generate_request_body([self.tensor()])
        await self.calls.passes("generate_request_body()", lambda: len(body) - size, lambda rest: rest == ROWS.nbytes)
        response = b'{"model_name":"echo","outputs":[{"name":"y","datatype":"FP32","shape":[1],"data":[1.0]}]}'
        parse = lambda: kind.parse_response_body(response)  # noqa: E731
        await self.calls.passes("parse_response_body()", parse, lambda result: result.as_numpy("y") == [1.0])

    def infer_async(self) -> Any:
        if self.is_http:
            return self.client.async_infer("echo", [self.tensor()]).get_result()
        results: queue.Queue[Any] = queue.Queue()
        self.client.async_infer("echo", [self.tensor()], lambda result, error: results.put(error or result))
        return results.get(timeout=30)

    async def stream(self) -> None:
        client, results = self.client, queue.Queue[Any]()

        def start() -> list[Any]:
            """Start a stream and use it: before, the server may not have seen it."""
            client.start_stream(lambda result, error: results.put(error or result))
            return send()

        def send(**options: Any) -> list[Any]:
            for _ in range(3):
                client.async_stream_infer("echo", [self.tensor()], **options)
            return [results.get(timeout=30) for _ in range(3)]

        await self.calls.passes("start_stream(), async_stream_infer(), three times", start, are_rows)
        final: Any = {"enable_empty_final_response": True}
        await self.calls.passes(
            "async_stream_infer(enable_empty_final_response=True), three times", lambda: send(**final), are_rows
        )
        await self.calls.passes("stop_stream()", client.stop_stream)

    async def stream_aio(self) -> None:
        async def requests() -> Any:
            for _ in range(3):
                yield {"model_name": "echo", "inputs": [self.tensor()]}

        async def read() -> list[Any]:
            return [error or result async for result, error in self.client.stream_infer(requests())]

        await self.calls.passes("stream_infer(), three times", read, are_rows)

    async def ask_for_what_is_not_supported(self) -> None:
        client, is_refused = self.client, self.calls.is_refused
        await is_refused("infer(sequence_id=7)", lambda: client.infer("echo", [self.tensor()], sequence_id=7))
        await is_refused('load_model("spare", config=…)', lambda: client.load_model("spare", config="{}"))
        await is_refused(
            'load_model("spare", config=…, files=…)',
            lambda: client.load_model("spare", config="{}", files={"file:1/model.py": b""}),
        )
        await is_refused("get_trace_settings()", client.get_trace_settings)
        await is_refused('get_trace_settings("echo")', lambda: client.get_trace_settings("echo"))
        await is_refused(
            "update_trace_settings()", lambda: client.update_trace_settings(settings={"trace_level": ["OFF"]})
        )
        await is_refused("get_log_settings()", client.get_log_settings)
        await is_refused("update_log_settings()", lambda: client.update_log_settings({"log_info": False}))
        register: dict[str, Callable[[], Any]] = {
            "system": lambda: client.register_system_shared_memory("region", "/key", 64),
            "cuda": lambda: client.register_cuda_shared_memory("region", HANDLE, 0, 64),
        }
        for kind, call in register.items():
            await is_refused(f"register_{kind}_shared_memory()", call)
            await is_refused(f"get_{kind}_shared_memory_status()", getattr(client, f"get_{kind}_shared_memory_status"))
            unregister = getattr(client, f"unregister_{kind}_shared_memory")
            await is_refused(f"unregister_{kind}_shared_memory()", unregister)
            await is_refused(
                f'unregister_{kind}_shared_memory("region")',
                lambda unregister=unregister: unregister("region"),  # type: ignore[misc]
            )
        shared, into = self.module.InferInput("x", [2, 4], "FP32"), self.output()
        shared.set_shared_memory("region", ROWS.nbytes)
        into.set_shared_memory("region", ROWS.nbytes)
        await is_refused("infer(), an input in shared memory", lambda: client.infer("echo", [shared]))
        await is_refused(
            "infer(), an output in shared memory", lambda: client.infer("echo", [self.tensor()], outputs=[into])
        )


def equals(values: Any, wanted: Any) -> bool:
    return values is not None and values.dtype == wanted.dtype and bool(np.array_equal(values, wanted))


def are_rows(results: list[Any]) -> bool:
    return len(results) == 3 and all(equals(result.as_numpy("y"), ROWS) for result in results)


def id_of(response: Any) -> str:
    return str(response["id"] if isinstance(response, dict) else response.id)


def models_of(index: Any) -> dict[str, Any]:
    return {model["name"]: model for model in (index if isinstance(index, list) else index["models"])}


async def main(kind: str, address: str) -> None:
    client: Any = importlib.import_module(f"tritonclient.{kind}").InferenceServerClient(address)
    calls = TritonCalls(kind, client)
    await calls.describe()
    await calls.load()
    await calls.infer_in_many_ways()
    await calls.ask_for_what_is_not_supported()
    if missing := calls.calls.missing(client, *WITHOUT_REQUEST):
        sys.exit(f"no call of {', '.join(missing)}")
    closed = client.close()
    if calls.is_aio:
        await closed


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
