"""Failures of processes and connections: every request has exactly one answer, and service resumes by itself."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fakes.proxy import Proxy
from harness.http_calls import send_http
from harness.model_folders import SIGNATURE, a_folder, an_emulated_model
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
from harness.running_services import RunningServices
from harness.waiting import until
from horologe import AsyncClient
from horologe_cli.local.ports import free_port
from horologe_common.status import HorologeError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STALL_S = 1.6
"""Longer than `links.silence_ns` and a heartbeat: the peers have lost the process."""


@pytest.fixture(params=[False, True], ids=["fused", "split"], scope="module")
def system(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServices]:
    folder = tmp_path_factory.mktemp("h")
    an_emulated_model(folder / "models")
    times = "[emulated]\nexec_ms = { 1 = 50.0, 2 = 60.0 }\nload_ms = 3\n"
    a_folder(folder / "models", "slow", SIGNATURE + times)
    with RunningServices(folder, f"frontend.grace_ns={GRACE_MS}ms", workers=2, split=request.param) as system:
        yield system


def victims(system: RunningServices) -> list[str]:
    """Return the processes of the services, and one worker."""
    services = ["edge"] if "edge" in system.supervisor.restarts() else ["frontend", "selector", "controller"]
    return [*services, "worker-0"]


def choose_victim(names: list[str], which: int) -> str:
    if which >= len(names):
        pytest.skip("fused: fewer processes")
    return names[which]


def test_no_answers_are_swapped_under_load_with_batching_and_cancellation(system: RunningServices) -> None:
    async def no_fault(_: AsyncClient) -> None: ...

    tally = run_under_load(system.endpoint, no_fault, 400, 1, cancel_every=7)
    assert tally.counts()["OK"] > 0
    assert tally.counts()["CANCELLED"] > 0


@pytest.mark.alone
@pytest.mark.parametrize("which", range(4))
def test_kill_nine_under_load(system: RunningServices, which: int) -> None:
    victim = choose_victim(victims(system), which)

    async def kill(_: AsyncClient) -> None:
        system.kill(victim)

    tally = run_under_load(system.endpoint, kill, 200, 2, cancel_every=11)
    assert tally.counts()["OK"] > 0
    assert tally.overtime_s < GRACE_MS / 1000 + 1  # the timeout of the SDK, with a margin for a busy machine


def test_no_model_is_unknown_to_a_restarted_controller(system: RunningServices) -> None:
    """The workers are stopped meanwhile, so that the new controller waits for both of them.

    A request with time waits for them too, although the SDK has to ask a new frontend for the signature first.
    """
    metadata, controller = f"{system.topology.http}/v2/models/pretend", victims(system)[-2]
    workers = ("worker-0", "worker-1")
    codes: Counter[int] = Counter()
    patient = Tally()

    async def restart_controller(client: AsyncClient) -> None:
        for worker in workers:
            system.kill(worker, signal.SIGSTOP)
        try:
            system.kill(controller)
            while codes.total() - codes[0] < 10 and codes.total() < 200:
                await asyncio.sleep(0.1)
                codes[await asyncio.to_thread(http_status, metadata)] += 1
            waiting = asyncio.ensure_future(ask(client, patient, 0, SETTLE_S * 1000))
            await asyncio.sleep(0.5)
        finally:
            for worker in workers:
                system.kill(worker, signal.SIGCONT)
        await waiting

    counts = run_under_load(system.endpoint, restart_controller, 100, 4).counts()
    assert counts["OK"] > 0
    assert patient.counts() == {"OK": 1}
    assert set(codes) <= {0, 200, 429}, codes
    assert codes[429 if controller == "edge" else 200] > 0, codes
    until(lambda: http_status(f"{system.topology.http}/v2/models/other") == 404)  # once both have registered


def http_status(url: str) -> int:
    """Return the status of a GET; 0 if there is no connection."""
    try:
        return send_http("GET", url)[0]
    except OSError:
        return 0


@pytest.mark.parametrize("which", range(3))
def test_after_a_stall_requests_that_were_sent_again_are_answered_once(system: RunningServices, which: int) -> None:
    """The peers of a stopped process drop its connections, and send their open requests again when it goes on."""
    victim = choose_victim(victims(system)[:-1], which)

    async def stall(_: AsyncClient) -> None:
        system.kill(victim, signal.SIGSTOP)
        await asyncio.sleep(STALL_S)
        system.kill(victim, signal.SIGCONT)

    assert run_under_load(system.endpoint, stall, 200, 3).counts()["OK"] > 0


def test_every_request_is_answered_if_a_worker_stops(system: RunningServices) -> None:
    async def stop_worker(_: AsyncClient) -> None:
        system.kill("worker-0", signal.SIGSTOP)
        await asyncio.sleep(STALL_S)
        system.kill("worker-0", signal.SIGCONT)

    assert run_under_load(system.endpoint, stop_worker, 100, 2).counts()["OK"] > 0


def test_nothing_is_refused_once_stopped_workers_are_back(system: RunningServices) -> None:
    """Both workers are stopped for 0.8 s while they execute. An execution that took 0.8 s says nothing of the next."""
    x, workers = np.zeros((1, 4), np.float32), ("worker-0", "worker-1")
    counts: Counter[str] = Counter()

    async def scenario() -> None:
        async with AsyncClient(system.endpoint, grace_ms=GRACE_MS) as client:
            await wait_for_service(client, START_S)
            await client.predict("slow", x, slo_ms=SETTLE_S * 1000)
            running = []
            for _ in workers:
                running.append(asyncio.ensure_future(client.predict("slow", x, slo_ms=SETTLE_S * 1000)))
                await asyncio.sleep(0.015)
            for worker in workers:
                system.kill(worker, signal.SIGSTOP)
            await asyncio.sleep(0.8)
            for worker in workers:
                system.kill(worker, signal.SIGCONT)
            await asyncio.gather(*running)
            await asyncio.sleep(0.2)
            for _ in range(12):
                try:
                    await client.predict("slow", x, slo_ms=300)
                    counts["OK"] += 1
                except HorologeError as error:
                    counts[error.status.name] += 1

    asyncio.run(scenario())
    assert counts["REFUSED"] == 0, counts
    assert counts["OK"] > 0


@pytest.fixture
def far_worker(tmp_path: Path) -> Iterator[tuple[str, Proxy]]:
    """Start an edge, and a worker through a proxy. Yield the client endpoint and the proxy."""
    an_emulated_model(tmp_path / "models")
    endpoint, port = f"ipc://{tmp_path}/clients", free_port("127.0.0.1")
    edge_sets = (
        f"links.bind=tcp://127.0.0.1:{port}", "links.allow_open=true", f"frontend.clients={endpoint}", "http.port=0",
        "grpc.port=0", f"frontend.grace_ns={GRACE_MS}ms", f"selector.state={tmp_path}",
    )  # fmt: skip
    with Proxy(port) as proxy:
        folders = (f"worker.repository={tmp_path}/models", f"worker.cache={tmp_path}/cache")
        worker_sets = (f"links.connect=tcp://127.0.0.1:{proxy.port}", "links.allow_open=true", *folders)
        processes = [a_process("horologe_cli.local.edge", *edge_sets), a_process("horologe_gpu_worker", *worker_sets)]
        try:
            yield endpoint, proxy
        finally:
            for process in processes:
                process.kill()
                process.wait(10)


def test_every_request_is_answered_if_connections_break(far_worker: tuple[str, Proxy]) -> None:
    endpoint, proxy = far_worker
    tally = Tally()

    async def cut_often() -> None:
        async with AsyncClient(endpoint, grace_ms=GRACE_MS) as client:
            await wait_for_service(client, START_S)
            for both_ends in (False, True) * 2:
                load = asyncio.ensure_future(offer(client, tally, 200, 0.3, cancel_every=11))
                await asyncio.sleep(0.15)
                proxy.cut(both_ends=both_ends)
                await load
                await wait_for_service(client)

    asyncio.run(cut_often())
    assert sorted(tally.ends) == list(range(240))
    assert tally.counts()["OK"] > 0
