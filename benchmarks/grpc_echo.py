"""Requests per second over gRPC beside a bare echo of grpc.aio with the same payload, in turn in one run.

    python benchmarks/grpc_echo.py                    # no-op, 64 requests in flight
    python benchmarks/grpc_echo.py --rounds 10 --clients 1
    python benchmarks/grpc_echo.py --triton           # Triton with a Python model as a third side

The echo answers with the bytes of the request, which it does not decode. It prints the CPU time of each process per
request, and the rate that the cores allow.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import grpc
import numpy as np
import psutil
import uvloop
from grpc import aio

from bench import report
from bench.horologe_server import Launch, start_horologe
from bench.peers import PEER_SERVERS, prepare_peer, wait_ready
from bench.server_process import Server, free_port
from bench.workload import ROOT, load_scenario
from horologe_frontend.grpc.messages import SERVICE, ModelInferRequest, ModelInferResponse

if TYPE_CHECKING:
    from collections.abc import Sequence

METHOD = f"/{SERVICE}/ModelInfer"
LEAST = 0.7
"""Least ratio of Horologe to the echo."""
TIMEOUT_S = 10.0
SLO_MS = 1000
"""Long enough that no request is refused: throughput is measured, not admission."""


class Echo(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers every method with its request."""

    def service(self, details: Any) -> Any:
        async def echo(request: bytes, context: Any) -> bytes:
            return request

        return grpc.unary_unary_rpc_method_handler(echo)


async def serve_echo(port: int) -> None:
    """Serve the echo on 127.0.0.1 until the process ends."""
    server = aio.server()
    server.add_generic_rpc_handlers((Echo(),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


def noop_request(model: str = "noop") -> bytes:
    """Return a request for the model `noop`, or for an equal one of a peer: 16 floats as raw contents."""
    request = ModelInferRequest(model_name=model)
    if model == "noop":
        request.parameters["slo_ms"].int64_param = SLO_MS
    request.inputs.add(name="x", datatype="FP32", shape=[1, 16])
    request.raw_input_contents.append(np.ones((1, 16), np.float32).tobytes())
    content: bytes = request.SerializeToString()
    return content


async def drive(address: str, model: str, clients: int, seconds: float) -> float:
    """Keep `clients` requests in flight. Return the requests per second."""
    content, done = noop_request(model), 0
    async with aio.insecure_channel(address) as channel:
        call = channel.unary_unary(METHOD)
        answer = await call(content, timeout=TIMEOUT_S)
        if (
            answer != content
            and ModelInferResponse.FromString(answer).raw_output_contents[0] != np.float32(16).tobytes()
        ):
            raise RuntimeError(f"{address}: wrong answer")
        end_s = time.monotonic() + seconds

        async def send() -> None:
            nonlocal done
            while time.monotonic() < end_s:
                await call(content, timeout=TIMEOUT_S)
                done += 1

        begin_s = time.monotonic()
        await asyncio.gather(*[send() for _ in range(clients)])
        return done / (time.monotonic() - begin_s)


class Measured(NamedTuple):
    """Requests per second, and microseconds of CPU time of each process per request."""

    rate: float
    cpu_us: dict[str, float]


class Side(NamedTuple):
    """A server under comparison."""

    name: str
    address: str
    processes: dict[str, psutil.Process]
    model: str = "noop"


def measure(side: Side, clients: int, seconds: float) -> Measured:
    """Keep requests in flight for `seconds`. Return what they cost."""
    processes = {**side.processes, "client": psutil.Process()}
    before = {name: sum(process.cpu_times()[:2]) for name, process in processes.items()}
    rate = uvloop.run(drive(side.address, side.model, clients, seconds))
    scale = 1e6 / (rate * seconds)
    used = {name: (sum(process.cpu_times()[:2]) - before[name]) * scale for name, process in processes.items()}
    return Measured(rate, used)


def compare(options: argparse.Namespace) -> dict[str, list[Measured]]:
    """Return what `measure` returns for each side, by round."""
    port = free_port()
    command = [sys.executable, str(Path(__file__).resolve()), "--serve", str(port)]
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        echo = stack.enter_context(Server(command, Path(folder) / "echo"))
        horologe = stack.enter_context(start_horologe(Launch(ROOT / "models", 1, profiler=False), "noop"))
        processes = {name: psutil.Process(pid) for name, pid in horologe.pids.items()}
        sides = [Side("echo", f"127.0.0.1:{port}", {"server": echo.processes()[0]})]
        sides.append(Side("horologe", horologe.grpc, processes))
        if options.triton:
            sides.append(start_triton(stack))
        for side in sides:
            measure(side, options.clients, 1.0)
        rows = [[measure(side, options.clients, options.seconds) for side in sides] for _ in range(options.rounds)]
    return {side.name: list(measured) for side, measured in zip(sides, zip(*rows, strict=True), strict=True)}


def start_triton(stack: contextlib.ExitStack) -> Side:
    """Start Triton with a Python model that does what `noop` does."""
    scenario, peer = load_scenario("noop"), PEER_SERVERS["triton"]
    started = prepare_peer(peer, scenario, binary=True)
    stack.enter_context(started.server)
    wait_ready(peer, started, scenario)
    port = (urlsplit(started.url).port or 0) + 1  # see peers/triton_server.py
    processes = {f"server {process.pid}": process for process in started.server.processes()}
    return Side("triton", f"127.0.0.1:{port}", processes, "peer")


def print_side(name: str, measured: Sequence[Measured]) -> None:
    """Print medians, and the rate at which the processes would occupy all cores."""
    rate = statistics.median(one.rate for one in measured)
    cpu_us = {process: statistics.median(one.cpu_us[process] for one in measured) for process in measured[0].cpu_us}
    parts = ", ".join(f"{process} {used:.0f}" for process, used in cpu_us.items() if used >= 1)
    cores, total = os.cpu_count() or 1, sum(cpu_us.values())
    print(f"{name}: {rate:.0f}/s; CPU time per request (us): {parts}; {cores} cores allow {cores / total * 1e6:.0f}/s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", type=int, default=0, metavar="PORT", help="only serve the echo")
    parser.add_argument("--clients", type=int, default=64, help="requests in flight")
    parser.add_argument(
        "--triton", action="store_true", help="also measure Triton (nvidia-pytriton, installed on first use)"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of every measurement")
    options = parser.parse_args()
    if options.serve:
        uvloop.run(serve_echo(options.serve))
    report.print_machine(report.describe_machine())
    measured = compare(options)
    for name, runs in measured.items():
        print_side(name, runs)
    medians = {}
    for peer in [name for name in measured if name != "horologe"]:
        ratios = [own.rate / other.rate for own, other in zip(measured["horologe"], measured[peer], strict=True)]
        medians[peer] = statistics.median(ratios)
        wanted = LEAST if peer == "echo" else 1.0
        print(f"horologe / {peer}: {medians[peer]:.2f} ({min(ratios):.2f}-{max(ratios):.2f}), wanted at least {wanted}")
    median = medians["echo"]
    return 0 if median >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
