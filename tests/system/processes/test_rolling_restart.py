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
from harness.offered_load import START_S, Tally, offer, wait_for_service
from horologe import AsyncClient, Client
from horologe_cli.local.local_system import LocalSystem
from horologe_cli.local.ports import free_port
from horologe_cli.local.topology import SystemOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


def run_under_steady_load(endpoint: str, work: Callable[[], None]) -> Counter[str]:
    """Send requests while `work` runs in a thread. Return how they ended."""

    async def scenario() -> Counter[str]:
        tally = Tally()
        async with AsyncClient(endpoint) as client:
            await wait_for_service(client, START_S)
            working = asyncio.create_task(asyncio.to_thread(work))
            while not working.done():
                await offer(client, tally, RATE, 1, slo_ms=SLO_MS)
            await working
        return tally.counts()

    return asyncio.run(scenario())


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


class BlockingLoad(threading.Thread):
    """Sends requests with the blocking client, with a pause before each, until `stop` is set."""

    def __init__(self, endpoint: str, stop: threading.Event) -> None:
        super().__init__()
        self.answers = 0
        self._client = Client(endpoint)
        self._stopped = stop

    def run(self) -> None:
        with self._client:
            while not self._stopped.wait(0.01):
                self._client.predict("pretend", [[1.0, 2.0, 3.0, 4.0]], slo_ms=SLO_MS)
                self.answers += 1


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_rolling_restart_of_every_service_loses_nothing(processes: ServiceProcesses, folder: Path) -> None:
    stop = threading.Event()
    endpoint = clients_of(folder)
    settings = dict(text.split("=", 1) for text in processes.services["frontend-0"].settings)
    http = [HttpLoad(int(settings["http.port"]), stop) for _ in range(4)]
    blocking = BlockingLoad(endpoint, stop)

    def restart_all() -> None:
        for load in (*http, blocking):
            load.start()
        try:
            for name in processes.services:
                processes.restart(name)
        finally:
            stop.set()
            for load in (*http, blocking):
                load.join()

    counts = run_under_steady_load(endpoint, restart_all)
    assert counts.keys() == {"OK"}
    assert blocking.answers > 0
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
    endpoint = f"ipc://{tmp_path}/clients"
    options = SystemOptions(
        models=str(tmp_path / "models"), workers=1, http="127.0.0.1:0", clients=(endpoint,), metrics="off",
        sets=(f"worker.cache={tmp_path}/cache",),
    )  # fmt: skip
    lines: list[str] = []
    with LocalSystem(options, lambda name, line: lines.append(line)) as system:
        system.wait_ready(START_S)

        def restart() -> None:
            for name in ("edge", "worker-0"):
                old = psutil.Process(system.supervisor.pids()[name])
                old.terminate()
                old.wait(20)
                time.sleep(1)

        assert run_under_steady_load(endpoint, restart).keys() == {"OK"}
    assert not [line for line in lines if " fault" in line]
    assert sum("drained" in line for line in lines) >= 2
