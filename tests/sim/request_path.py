"""Follow one HTTP request through the simulated system and record every function of the product that runs for it."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from horologe_common.clock import ms, us
from horologe_frontend.gateway import Gateway
from horologe_frontend.http.connection import HttpConnection
from horologe_frontend.http.server import HttpServer
from horologe_frontend.http.settings import HttpSettings
from horologe_frontend.oip.handler import OipHandler
from horologe_sim.scenario.simulated_cluster import SimulatedCluster
from sim.sim_builders import a_scenario, an_entry

if TYPE_CHECKING:
    from types import FrameType

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = (str(ROOT / "libs"), str(ROOT / "services"))
STEP_NS = us(50)
STEPS = 2000


class Call(NamedTuple):
    """A function that ran: its file relative to the repository, and its qualified name."""

    file: str
    function: str


class Trace:
    """The calls of one request, in order of their first occurrence, and the response."""

    def __init__(self) -> None:
        self.calls: dict[Call, None] = {}
        self.response = b""

    @property
    def files(self) -> list[str]:
        """Distinct files of the product, in the order in which the request reached them."""
        return list(dict.fromkeys(call.file for call in self.calls))

    def record(self, frame: FrameType, event: str, _: Any) -> None:
        """A profile function for `sys.setprofile`."""
        if event == "call" and frame.f_code.co_filename.startswith(PRODUCT):
            file = str(Path(frame.f_code.co_filename).relative_to(ROOT))
            self.calls[Call(file, frame.f_code.co_qualname)] = None


def trace_request() -> Trace:
    """Serve one inference over HTTP by a warm fused edge and one worker with a resident model."""
    cluster = SimulatedCluster(a_scenario(an_entry("m"), load=(), duration_ns=ms(1), workers=1))
    cluster.run()
    return asyncio.run(_trace(cluster))


async def _trace(cluster: SimulatedCluster) -> Trace:
    edge: Any = cluster.world.processes["edge"]
    core: Any = cluster.world.core("frontend/0")
    gateway = Gateway(edge, core.address.replace("frontend/", "http/"), core)
    gateway.open()
    settings = HttpSettings()
    server = HttpServer(settings, OipHandler(gateway, settings))
    server.loop = asyncio.get_running_loop()
    account = server.clients.add_connection("127.0.0.1")
    assert account is not None
    connection = HttpConnection(server, account)
    trace = Trace()
    written: list[bytes] = []
    transport: Any = SimpleNamespace(
        write=written.append, writelines=written.extend, **dict.fromkeys(("close", "abort"), lambda: None)
    )
    connection.connection_made(transport)
    await _serve(cluster, connection, written)  # the first request warms what later ones find ready
    written.clear()
    gc.collect()
    gc.disable()  # finalizers of objects of other tests are not part of the path
    sys.setprofile(trace.record)
    try:
        await _serve(cluster, connection, written)
    finally:
        sys.setprofile(None)
        gc.enable()
    trace.response = b"".join(written)
    return trace


async def _serve(cluster: SimulatedCluster, connection: HttpConnection, written: list[bytes]) -> None:
    connection.data_received(_request(cluster))
    for _ in range(STEPS):
        if written:
            return
        await asyncio.sleep(0)
        cluster.world.run(cluster.world.now_ns + STEP_NS)
    raise AssertionError("no response")


def _request(cluster: SimulatedCluster) -> bytes:
    inputs = [
        {"name": tensor.name, "datatype": tensor.datatype, "shape": [1, *tensor.shape[1:]], "data": [0] * _size(tensor)}
        for tensor in next(iter(cluster.models.values())).report.spec.inputs
    ]
    body = json.dumps({"inputs": inputs, "parameters": {"slo_ms": 100}}).encode()
    return b"POST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def _size(tensor: Any) -> int:
    size = 1
    for extent in tensor.shape[1:]:
        size *= extent
    return size


if __name__ == "__main__":
    for number, path in enumerate(trace_request().files, 1):
        print(f"{number:3} {path}")  # noqa: T201
