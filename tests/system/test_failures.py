"""Failures of processes and connections: every request has exactly one answer, and service resumes by itself."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
import psutil
import pytest

from horologe import AsyncClient
from horologe_cli.local.local_system import LocalSystem
from horologe_cli.local.ports import free_port
from horologe_cli.local.topology import SystemOptions
from horologe_common.status import HorologeError
from model_folders import an_emulated_model
from proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GRACE_MS = 250
SLO_MS = 400
SETTLE_S = 20
START_S = 60


class RunningSystem:
    """The whole system as processes, with an emulated model that returns its input."""

    def __init__(self, folder: Path, split: bool) -> None:
        an_emulated_model(folder / "models")
        endpoint = f"ipc://{folder}/clients"
        sets = (f"worker.cache={folder}/cache", f"frontend.grace_ns={GRACE_MS}ms")
        self.lines: list[str] = []
        self.options = SystemOptions(
            models=str(folder / "models"),
            workers=2,
            split=split,
            http="127.0.0.1:0",
            clients=(endpoint,),
            metrics="off",
            sets=sets,
        )
        self.local = LocalSystem(self.options, lambda name, line: self.lines.append(f"{name}: {line}"))
        self.endpoint = endpoint

    def kill(self, module: str, number: signal.Signals = signal.SIGKILL, count: int = 1) -> None:
        """Signal the first `count` processes that run `module`."""
        pids = [child.pid for child in psutil.Process().children(recursive=True) if module in child.cmdline()]
        assert len(pids) >= count, f"wanted {count} processes of {module}, got {pids}"
        for pid in pids[:count]:
            os.kill(pid, number)


@pytest.fixture(params=[False, True], ids=["fused", "split"], scope="module")
def system(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSystem]:
    system = RunningSystem(tmp_path_factory.mktemp("h"), request.param)
    with system.local:
        system.local.wait_ready(START_S)
        yield system
    assert not [line for line in system.lines if " fault" in line]


class Tally:
    """Final statuses of requests by number. A second status, or the data of another request, is an error."""

    def __init__(self) -> None:
        self.ends: dict[int, str] = {}
        self.overtime_s = 0.0

    def end(self, number: int, status: str) -> None:
        assert number not in self.ends, f"request {number} ended twice"
        self.ends[number] = status

    def counts(self) -> Counter[str]:
        return Counter(self.ends.values())


async def ask(client: AsyncClient, tally: Tally, number: int, slo_ms: float = SLO_MS) -> None:
    """Send a request whose rows contain its number, and count its status."""
    rows = 1 + number % 2
    x = np.full((rows, 4), number, np.float32)
    x[:, 1] = np.arange(rows)
    begin = time.monotonic()
    try:
        y = await client.predict("pretend", x, slo_ms=slo_ms)
    except HorologeError as error:
        tally.end(number, error.status.name)
    except asyncio.CancelledError:
        tally.end(number, "CANCELLED")
    else:
        np.testing.assert_array_equal(y, x)
        tally.end(number, "OK")
    tally.overtime_s = max(tally.overtime_s, time.monotonic() - begin - slo_ms / 1000)


async def offer(client: AsyncClient, tally: Tally, rate: float, seconds: float, *, cancel_every: int = 0) -> None:
    """Send a request every 1/rate seconds without waiting for answers, then wait for all of them."""
    tasks = []
    first = len(tally.ends)
    for index in range(int(rate * seconds)):
        task = asyncio.ensure_future(ask(client, tally, first + index))
        tasks.append(task)
        if cancel_every and index % cancel_every == 0:
            asyncio.get_running_loop().call_later(0.002, task.cancel)
        await asyncio.sleep(1 / rate)
    await asyncio.wait_for(asyncio.gather(*tasks), SETTLE_S)


async def wait_for_service(client: AsyncClient, within_s: float = SETTLE_S) -> None:
    """Send requests until five in a row succeed."""
    tally, number = Tally(), 0
    end = time.monotonic() + within_s
    while list(tally.ends.values())[-5:] != ["OK"] * 5:
        assert time.monotonic() < end, f"service did not resume: {tally.counts()}"
        await ask(client, tally, number)
        number += 1


def victims(split: bool) -> list[str]:
    services = (
        ["horologe_frontend", "horologe_selector", "horologe_controller"] if split else ["horologe_cli.local.edge"]
    )
    return [*services, "horologe_gpu_worker"]


def run(scenario: Any) -> Any:
    return asyncio.run(scenario)


def test_no_answers_are_swapped_under_load_with_batching_and_cancellation(system: RunningSystem) -> None:
    async def scenario() -> Tally:
        tally = Tally()
        async with AsyncClient(system.endpoint, grace_ms=GRACE_MS) as client:
            await offer(client, tally, 400, 2, cancel_every=7)
        return tally

    tally = run(scenario())
    assert sorted(tally.ends) == list(range(800))
    assert tally.counts()["OK"] > 0
    assert tally.counts()["CANCELLED"] > 0


@pytest.mark.parametrize("which", range(4))
def test_kill_nine_under_load(system: RunningSystem, which: int) -> None:
    names = victims(system.options.split)
    if which >= len(names):
        pytest.skip("fused: fewer processes")

    async def scenario() -> Tally:
        tally = Tally()
        async with AsyncClient(system.endpoint, grace_ms=GRACE_MS) as client:
            await wait_for_service(client)
            load = asyncio.ensure_future(offer(client, tally, 200, 3, cancel_every=11))
            await asyncio.sleep(1)
            system.kill(names[which])
            await load
            await wait_for_service(client)
        return tally

    tally = run(scenario())
    assert sorted(tally.ends) == list(range(600))
    assert tally.counts()["OK"] > 0
    assert tally.counts()["UNKNOWN_MODEL"] == 0
    assert tally.overtime_s < GRACE_MS / 1000 + 1  # the timeout of the SDK, with a margin for a busy machine


def test_no_model_is_unknown_to_a_restarted_controller(system: RunningSystem) -> None:
    """The workers are stopped meanwhile, so that the new controller waits for both of them."""
    metadata = f"{system.local.topology.http}/v2/models/pretend"
    codes: Counter[int] = Counter()

    async def scenario() -> Tally:
        tally = Tally()
        async with AsyncClient(system.endpoint, grace_ms=GRACE_MS) as client:
            await wait_for_service(client)
            load = asyncio.ensure_future(offer(client, tally, 100, 4))
            await asyncio.sleep(0.5)
            system.kill("horologe_gpu_worker", signal.SIGSTOP, count=2)
            try:
                system.kill("horologe_controller" if system.options.split else "horologe_cli.local.edge")
                while codes.total() - codes[0] < 10 and codes.total() < 200:
                    await asyncio.sleep(0.1)
                    codes[await asyncio.to_thread(http_status, metadata)] += 1
            finally:
                system.kill("horologe_gpu_worker", signal.SIGCONT, count=2)
            await load
            await wait_for_service(client)
        return tally

    counts = run(scenario()).counts()
    assert counts["UNKNOWN_MODEL"] == 0, counts
    assert counts["OK"] > 0
    assert set(codes) <= {0, 200, 503}, codes
    assert codes[200 if system.options.split else 503] > 0, codes
    assert http_status(f"{system.local.topology.http}/v2/models/other") == 404


def http_status(url: str) -> int:
    """Return the status of a GET; 0 if there is no connection."""
    try:
        with urlopen(url, timeout=5) as response:
            return int(response.status)
    except HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return 0


@pytest.mark.parametrize("which", range(3))
def test_after_a_stall_requests_that_were_sent_again_are_answered_once(system: RunningSystem, which: int) -> None:
    """The peers of a stopped process drop its connections, and send their open requests again when it goes on."""
    names = victims(system.options.split)[:-1]
    if which >= len(names):
        pytest.skip("fused: fewer processes")

    async def scenario() -> Tally:
        tally = Tally()
        async with AsyncClient(system.endpoint, grace_ms=GRACE_MS) as client:
            await wait_for_service(client)
            load = asyncio.ensure_future(offer(client, tally, 200, 4))
            await asyncio.sleep(0.5)
            system.kill(names[which], signal.SIGSTOP)
            await asyncio.sleep(2)
            system.kill(names[which], signal.SIGCONT)
            await load
            await wait_for_service(client)
        return tally

    tally = run(scenario())
    assert sorted(tally.ends) == list(range(800))
    assert tally.counts()["OK"] > 0
    assert tally.counts()["UNKNOWN_MODEL"] == 0


def test_every_request_is_answered_if_a_worker_stops(system: RunningSystem) -> None:
    async def scenario() -> Tally:
        tally = Tally()
        async with AsyncClient(system.endpoint, grace_ms=GRACE_MS) as client:
            await wait_for_service(client)
            load = asyncio.ensure_future(offer(client, tally, 100, 2))
            await asyncio.sleep(0.5)
            system.kill("horologe_gpu_worker", signal.SIGSTOP)
            try:
                await load
            finally:
                system.kill("horologe_gpu_worker", signal.SIGCONT)
            await wait_for_service(client)
        return tally

    tally = run(scenario())
    assert sorted(tally.ends) == list(range(200))
    assert tally.counts()["OK"] > 0


@pytest.fixture
def far_worker(tmp_path: Path) -> Iterator[tuple[str, Proxy]]:
    """Start an edge, and a worker connected to it through a proxy. Yield the client endpoint and the proxy."""
    an_emulated_model(tmp_path / "models")
    endpoint, port = f"ipc://{tmp_path}/clients", free_port("127.0.0.1")
    sets = [
        f"links.bind=tcp://127.0.0.1:{port}",
        "links.allow_open=true",
        f"frontend.clients={endpoint}",
        "http.port=0",
    ]
    sets += [f"frontend.grace_ns={GRACE_MS}ms", f"selector.state={tmp_path}"]
    with Proxy(port) as proxy:
        processes = [a_process("horologe_cli.local.edge", *sets)]
        sets = [
            f"links.connect=tcp://127.0.0.1:{proxy.port}",
            "links.allow_open=true",
            f"worker.repository={tmp_path}/models",
        ]
        processes.append(a_process("horologe_gpu_worker", *sets, f"worker.cache={tmp_path}/cache"))
        try:
            yield endpoint, proxy
        finally:
            for process in processes:
                process.kill()
                process.wait(10)


def a_process(module: str, *sets: str, read_log: bool = False) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", module, "--set=metrics.bind=", *(f"--set={text}" for text in sets)]
    return subprocess.Popen(command, stderr=subprocess.PIPE if read_log else None)


def test_every_request_is_answered_if_connections_break(far_worker: tuple[str, Proxy]) -> None:
    endpoint, proxy = far_worker

    async def scenario() -> Tally:
        tally = Tally()
        async with AsyncClient(endpoint, grace_ms=GRACE_MS) as client:
            await wait_for_service(client, START_S)
            for both_ends in (False, True) * 4:
                load = asyncio.ensure_future(offer(client, tally, 200, 0.3, cancel_every=11))
                await asyncio.sleep(0.15)
                proxy.cut(both_ends=both_ends)
                await load
                await wait_for_service(client)
        return tally

    tally = run(scenario())
    assert sorted(tally.ends) == list(range(480))
    assert tally.counts()["OK"] > 0


@pytest.mark.parametrize("to_edge", [False, True])
def test_service_resumes_after_strange_bytes_in_the_connection_of_a_worker(
    far_worker: tuple[str, Proxy], to_edge: bool
) -> None:
    endpoint, proxy = far_worker

    async def scenario() -> None:
        async with AsyncClient(endpoint, grace_ms=GRACE_MS) as client:
            await wait_for_service(client, START_S)
            proxy.inject(b"\xff" * 9, to_target=to_edge)
            while proxy.connections == 1:
                await ask(client, Tally(), 0)
            await wait_for_service(client)

    run(scenario())


def test_a_second_worker_of_a_name_is_refused_and_its_end_harms_nobody(
    far_worker: tuple[str, Proxy], tmp_path: Path
) -> None:
    endpoint, proxy = far_worker
    sets = (
        f"links.connect=tcp://127.0.0.1:{proxy.port}",
        "links.allow_open=true",
        f"worker.repository={tmp_path}/models",
    )

    async def scenario() -> None:
        async with AsyncClient(endpoint, grace_ms=GRACE_MS) as client:
            await wait_for_service(client, START_S)
            with a_process("horologe_gpu_worker", *sets, f"worker.cache={tmp_path}/cache", read_log=True) as second:
                assert second.stderr
                assert any(b"refused by the peer" in line and b"worker/0" in line for line in second.stderr)
                second.kill()
            await wait_for_service(client)

    run(scenario())
