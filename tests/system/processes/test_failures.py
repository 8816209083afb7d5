"""Failures of processes and connections: every request has exactly one answer, and service resumes by itself."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import urlopen

import psutil
import pytest

from fakes.proxy import Proxy
from harness.model_folders import an_emulated_model
from harness.offered_load import (
    GRACE_MS,
    SETTLE_S,
    START_S,
    Tally,
    a_process,
    ask,
    offer,
    run_under_load,
    wait_for_service,
)
from harness.waiting import until
from horologe import AsyncClient
from horologe_cli.local.local_system import LocalSystem
from horologe_cli.local.ports import free_port
from horologe_cli.local.topology import SystemOptions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

STALL_S = 1.6
"""Longer than `links.silence_ns` and a heartbeat: the peers have lost the process."""


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
        pids = [pid for pid in self.local.supervisor.pids().values() if module in psutil.Process(pid).cmdline()]
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


def victims(split: bool) -> list[str]:
    services = (
        ["horologe_frontend", "horologe_selector", "horologe_controller"] if split else ["horologe_cli.local.edge"]
    )
    return [*services, "horologe_gpu_worker"]


def choose_victim(system: RunningSystem, names: list[str], which: int) -> str:
    if which >= len(names):
        pytest.skip("fused: fewer processes")
    return names[which]


def test_no_answers_are_swapped_under_load_with_batching_and_cancellation(system: RunningSystem) -> None:
    async def no_fault(_: AsyncClient) -> None: ...

    tally = run_under_load(system.endpoint, no_fault, 400, 1, cancel_every=7)
    assert tally.counts()["OK"] > 0
    assert tally.counts()["CANCELLED"] > 0


@pytest.mark.alone
@pytest.mark.parametrize("which", range(4))
def test_kill_nine_under_load(system: RunningSystem, which: int) -> None:
    victim = choose_victim(system, victims(system.options.split), which)

    async def kill(_: AsyncClient) -> None:
        system.kill(victim)

    tally = run_under_load(system.endpoint, kill, 200, 2, cancel_every=11)
    assert tally.counts()["OK"] > 0
    assert tally.overtime_s < GRACE_MS / 1000 + 1  # the timeout of the SDK, with a margin for a busy machine


def test_no_model_is_unknown_to_a_restarted_controller(system: RunningSystem) -> None:
    """The workers are stopped meanwhile, so that the new controller waits for both of them.

    A request with time waits for them too, although the SDK has to ask a new frontend for the signature first.
    """
    metadata = f"{system.local.topology.http}/v2/models/pretend"
    codes: Counter[int] = Counter()
    patient = Tally()

    async def restart_controller(client: AsyncClient) -> None:
        system.kill("horologe_gpu_worker", signal.SIGSTOP, count=2)
        try:
            system.kill("horologe_controller" if system.options.split else "horologe_cli.local.edge")
            while codes.total() - codes[0] < 10 and codes.total() < 200:
                await asyncio.sleep(0.1)
                codes[await asyncio.to_thread(http_status, metadata)] += 1
            waiting = asyncio.ensure_future(ask(client, patient, 0, SETTLE_S * 1000))
            await asyncio.sleep(0.5)
        finally:
            system.kill("horologe_gpu_worker", signal.SIGCONT, count=2)
        await waiting

    counts = run_under_load(system.endpoint, restart_controller, 100, 4).counts()
    assert counts["OK"] > 0
    assert patient.counts() == {"OK": 1}
    assert set(codes) <= {0, 200, 429}, codes
    assert codes[200 if system.options.split else 429] > 0, codes
    until(lambda: http_status(f"{system.local.topology.http}/v2/models/other") == 404)  # once both have registered


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
    victim = choose_victim(system, victims(system.options.split)[:-1], which)

    async def stall(_: AsyncClient) -> None:
        system.kill(victim, signal.SIGSTOP)
        await asyncio.sleep(STALL_S)
        system.kill(victim, signal.SIGCONT)

    assert run_under_load(system.endpoint, stall, 200, 3).counts()["OK"] > 0


def test_every_request_is_answered_if_a_worker_stops(system: RunningSystem) -> None:
    async def stop_worker(_: AsyncClient) -> None:
        system.kill("horologe_gpu_worker", signal.SIGSTOP)
        await asyncio.sleep(STALL_S)
        system.kill("horologe_gpu_worker", signal.SIGCONT)

    assert run_under_load(system.endpoint, stop_worker, 100, 2).counts()["OK"] > 0


def worker_sets(proxy: Proxy, folder: Path) -> tuple[str, ...]:
    """Return the settings of a worker that connects through a proxy."""
    return (
        f"links.connect=tcp://127.0.0.1:{proxy.port}", "links.allow_open=true", f"worker.repository={folder}/models",
        f"worker.cache={folder}/cache",
    )  # fmt: skip


@pytest.fixture(scope="module")
def far_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Proxy, tuple[str, ...]]]:
    """Start an edge, and a worker through a proxy. Yield the client endpoint, the proxy, the settings of the worker."""
    folder = tmp_path_factory.mktemp("far")
    an_emulated_model(folder / "models")
    endpoint, port = f"ipc://{folder}/clients", free_port("127.0.0.1")
    edge_sets = (
        f"links.bind=tcp://127.0.0.1:{port}", "links.allow_open=true", f"frontend.clients={endpoint}", "http.port=0",
        f"frontend.grace_ns={GRACE_MS}ms", f"selector.state={folder}",
    )  # fmt: skip
    with Proxy(port) as proxy:
        processes = [a_process("horologe_cli.local.edge", *edge_sets)]
        sets = worker_sets(proxy, folder)
        processes.append(a_process("horologe_gpu_worker", *sets))
        try:
            yield endpoint, proxy, sets
        finally:
            for process in processes:
                process.kill()
                process.wait(10)


def run_with_client(endpoint: str, scenario: Callable[[AsyncClient], Awaitable[None]]) -> None:
    """Call `scenario` once the services answer, and wait until they answer again."""

    async def run() -> None:
        async with AsyncClient(endpoint, grace_ms=GRACE_MS) as client:
            await wait_for_service(client, START_S)
            await scenario(client)
            await wait_for_service(client)

    asyncio.run(run())


def test_every_request_is_answered_if_connections_break(far_worker: tuple[str, Proxy, tuple[str, ...]]) -> None:
    endpoint, proxy, _ = far_worker
    tally = Tally()

    async def cut_often(client: AsyncClient) -> None:
        for both_ends in (False, True) * 2:
            load = asyncio.ensure_future(offer(client, tally, 200, 0.3, cancel_every=11))
            await asyncio.sleep(0.15)
            proxy.cut(both_ends=both_ends)
            await load
            await wait_for_service(client)

    run_with_client(endpoint, cut_often)
    assert sorted(tally.ends) == list(range(240))
    assert tally.counts()["OK"] > 0


@pytest.mark.parametrize("to_edge", [False, True])
def test_service_resumes_after_strange_bytes_in_the_connection_of_a_worker(
    far_worker: tuple[str, Proxy, tuple[str, ...]], to_edge: bool
) -> None:
    endpoint, proxy, _ = far_worker

    async def inject(client: AsyncClient) -> None:
        before = proxy.connections
        proxy.inject(b"\xff" * 9, to_target=to_edge)
        while proxy.connections == before:
            await ask(client, Tally(), 0)

    run_with_client(endpoint, inject)


def test_a_second_worker_of_a_name_is_refused_and_its_end_harms_nobody(
    far_worker: tuple[str, Proxy, tuple[str, ...]],
) -> None:
    endpoint, _, sets = far_worker

    async def start_second(client: AsyncClient) -> None:
        with a_process("horologe_gpu_worker", *sets, read_log=True) as second:
            assert second.stderr
            assert any(b"refused by the peer" in line and b"worker/0" in line for line in second.stderr)
            second.kill()

    run_with_client(endpoint, start_second)
