"""A rolling restart of every service under load: no request is lost, late or refused."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
import time
from collections import Counter
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

from bench.service_processes import ServiceProcesses, clients_of, one_of_each
from harness.model_folders import an_emulated_model
from harness.offered_load import START_S, ClosedLoad, run_beside_load, wait_for_service
from harness.running_services import RunningServices
from horologe import AsyncClient
from horologe_cli.local.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.alone
"""A process that gets no processor for `links.silence_ns` counts as lost, and its requests are LOST."""
SLO_MS = 20_000.0
"""Longer than the restart of a controller on a busy machine."""
RATE = 40.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("r")


@pytest.fixture(scope="module")
def processes(folder: Path) -> Iterator[ServiceProcesses]:
    an_emulated_model(folder / "models")
    with ServiceProcesses(folder, one_of_each(folder, free_port("127.0.0.1"))) as processes:
        processes.wait_ready()
        yield processes
    logs = [line for name in processes.services for line in processes.read_log(name).splitlines()]
    assert not [line for line in logs if " fault" in line or "aborted" in line]


class HttpLoad(threading.Thread):
    """Sends requests over one connection that stays open, until `stop` is set. It does not send any twice."""

    def __init__(self, port: int, stop: threading.Event) -> None:
        super().__init__()
        self.statuses: Counter[int] = Counter()
        self._connection = HTTPConnection("127.0.0.1", port, timeout=30)
        self._stopped = stop

    def run(self) -> None:
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
        body = json.dumps({"inputs": [tensor], "parameters": {"timeout": 1_000_000 * int(SLO_MS / 1000)}})
        while not self._stopped.wait(0.02):
            self._connection.request("POST", "/v2/models/pretend/infer", body)
            response = self._connection.getresponse()
            response.read()
            self.statuses[response.status] += 1
        self._connection.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_rolling_restart_of_every_service_loses_nothing(processes: ServiceProcesses, folder: Path) -> None:
    stop = threading.Event()
    endpoint = clients_of(folder)
    settings = dict(text.split("=", 1) for text in processes.services["frontend-0"].settings)
    http = [HttpLoad(int(settings["http.port"]), stop) for _ in range(4)]
    blocking = ClosedLoad(endpoint, pause_s=0.01, slo_ms=SLO_MS)

    def restart_all() -> None:
        for load in http:
            load.start()
        try:
            for name in processes.services:
                processes.restart(name)
        finally:
            stop.set()
            for load in http:
                load.join()

    assert run_beside_load(endpoint, restart_all, RATE, SLO_MS).keys() == {"OK"}
    assert blocking.stop() == {"OK": blocking.sent}
    for load in http:
        assert load.statuses.keys() == {200}


def test_one_of_two_frontends_may_die(processes: ServiceProcesses, folder: Path) -> None:
    """Requests that it had are LOST. All clients use the other one from then on."""

    async def scenario() -> None:
        async with AsyncClient(clients_of(folder)) as one, AsyncClient(clients_of(folder)) as other:
            await asyncio.gather(wait_for_service(one, START_S), wait_for_service(other, START_S))
            processes.stop("frontend-0", signal.SIGKILL)
            await asyncio.gather(wait_for_service(one), wait_for_service(other))
            processes.start("frontend-0")
            processes.wait_ready("frontend-0")
            processes.stop("frontend-1", signal.SIGKILL)
            await asyncio.gather(wait_for_service(one), wait_for_service(other))

    asyncio.run(scenario())


def test_a_restarted_edge_loses_nothing(tmp_path: Path) -> None:
    """Clients of the only edge send nothing more to it, and hold their requests until it is back."""
    an_emulated_model(tmp_path / "models")
    with RunningServices(tmp_path) as system:

        def restart() -> None:
            for name in ("edge", "worker-0"):
                old = psutil.Process(system.pid(name))
                old.terminate()
                old.wait(20)
                time.sleep(1)

        assert run_beside_load(system.endpoint, restart, RATE, SLO_MS).keys() == {"OK"}
    assert sum("drained" in line for line in system.lines) >= 2
