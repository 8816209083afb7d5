"""A server of the Open Inference Protocol whose delay and capacity are known, over HTTP and gRPC, and its simulation.

Each request takes one of `slots` for `delay_ns`, in the order of arrival. Its capacity is slots / delay. The end of a
request is computed, and not the result of sleeping, so that late timers do not add up.

    python benchmarks/bench/known_server.py HTTP_PORT GRPC_PORT SLOTS DELAY_MS
"""

from __future__ import annotations

import asyncio
import heapq
import json
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any, cast

import grpc
import numpy as np
from grpc import aio

from horologe_common.transport.alarm import Alarm
from horologe_frontend.grpc.messages import SERVICE, ModelInferResponse, message_type
from horologe_load.load_processes import Load, LoadRun
from horologe_load.samples import ClientOutcome, Samples

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

MODEL = "known"
SHAPE = (1, 4)
METADATA = {
    "name": MODEL,
    "inputs": [{"name": "x", "datatype": "FP32", "shape": list(SHAPE)}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 1]}],
}
SERVER = {"name": MODEL, "version": "1", "extensions": ["binary_tensor_data"]}
ANSWER = {"model_name": MODEL, "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 1], "data": [0.0]}]}


def simulate_latencies(arrivals_ns: Sequence[int], slots: int, delay_ns: int) -> NDArray[np.int64]:
    """Return the latencies of requests at such a server, in nanoseconds. `arrivals_ns` are ascending.

    All requests take the same time, so request n starts when it has arrived and request n - slots has ended.
    """
    at = np.asarray(arrivals_ns, np.int64)
    begin = np.empty_like(at)
    for slot in range(slots):
        turns = delay_ns * np.arange(len(at[slot::slots]))
        begin[slot::slots] = np.maximum.accumulate(at[slot::slots] - turns) + turns
    return begin + delay_ns - at


class SimulatedProcesses:
    """Takes the place of `LoadProcesses`: offers the load to the simulated server, in no time."""

    def __init__(self, slots: int, delay_ns: int) -> None:
        self._slots, self._delay_ns = slots, delay_ns

    def run(self, load: Load, on_progress: Callable[[int], None] = lambda answered: None) -> LoadRun:
        """See `LoadProcesses.run`."""
        samples = Samples()
        due_ns = list(load.arrivals)
        for turn in range(int(load.seconds * 1e9 / self._delay_ns) if load.clients else 0):
            due_ns += [turn * self._delay_ns] * min(load.clients, self._slots)
        took_ns = simulate_latencies(due_ns, self._slots, self._delay_ns)
        for at_ns, latency_ns in zip(due_ns, took_ns.tolist(), strict=True):
            samples.add_answer(samples.add_request(at_ns, at_ns), at_ns + latency_ns, ClientOutcome.OK, None)
        return LoadRun(samples, load.seconds, (0.0,))


class Slots:
    """Calls callbacks when their requests end."""

    def __init__(self, slots: int, delay_ns: int) -> None:
        self._free_ns = [0] * slots
        self._delay_ns = delay_ns
        self._ends: deque[tuple[int, Callable[[], None]]] = deque()
        self._alarm = Alarm(asyncio.get_running_loop(), self._end_requests)

    def call_at_end(self, callback: Callable[[], None]) -> None:
        """Begin a request now."""
        end_ns = max(time.monotonic_ns(), self._free_ns[0]) + self._delay_ns
        heapq.heapreplace(self._free_ns, end_ns)
        self._ends.append((end_ns, callback))
        if len(self._ends) == 1:
            self._alarm.set(end_ns)

    def _end_requests(self) -> None:
        while self._ends and self._ends[0][0] <= time.monotonic_ns():
            self._ends.popleft()[1]()
        if self._ends:
            self._alarm.set(self._ends[0][0])


class KnownHttp(asyncio.Protocol):
    """A connection with one request at a time."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._data = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        lines = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
        if not found or len(body) < int(lines.get(b"content-length", 0)):
            return
        self._data = b""
        if head.startswith(b"POST"):
            self._slots.call_at_end(lambda: self._answer(ANSWER))
        else:
            self._answer(SERVER if head.split(b" ", 2)[1] == b"/v2" else METADATA)

    def _answer(self, document: dict[str, Any]) -> None:
        content = json.dumps(document).encode()
        self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(content), content))


class KnownGrpc(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The methods ModelMetadata and ModelInfer."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots

    def service(self, details: Any) -> Any:
        infer = details.method == f"/{SERVICE}/ModelInfer"
        return grpc.unary_unary_rpc_method_handler(self._infer if infer else self._describe)

    async def _infer(self, request: bytes, context: Any) -> bytes:
        ended = asyncio.Event()
        self._slots.call_at_end(ended.set)
        await ended.wait()
        content: bytes = ModelInferResponse(model_name=MODEL).SerializeToString()
        return content

    async def _describe(self, request: bytes, context: Any) -> bytes:
        metadata = message_type("ModelMetadataResponse")(name=MODEL)
        metadata.inputs.add(name="x", datatype="FP32", shape=SHAPE)
        content: bytes = metadata.SerializeToString()
        return content


async def serve(http_port: int, grpc_port: int, slots: int, delay_ms: float) -> None:
    """Serve on 127.0.0.1 until the process ends. Both ports share the slots."""
    shared = Slots(slots, round(delay_ms * 1e6))
    await asyncio.get_running_loop().create_server(lambda: KnownHttp(shared), "127.0.0.1", http_port, backlog=4096)
    server = aio.server()
    server.add_generic_rpc_handlers((KnownGrpc(shared),))
    server.add_insecure_port(f"127.0.0.1:{grpc_port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
