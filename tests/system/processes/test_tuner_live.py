"""A pipeline over emulated workers as processes: a spike and a drop of its traffic, and no query is lost."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from harness.model_folders import a_folder
from harness.pipeline_folders import CHAIN, write_pipelines
from harness.running_services import RunningServices
from harness.waiting import until
from horologe import AsyncClient, Client
from horologe_common.clock import ms, s
from horologe_common.status import HorologeError
from horologe_experiments.live.local_services import apply_plan
from horologe_load.arrivals import gamma
from horologe_planning.envelope import TrafficEnvelope, envelope_of, window_lengths
from horologe_planning.plan import Placement, Plan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MANIFEST = """batch_sizes = [1, 2, 4]
inputs = [{{ name = "x", datatype = "FP32", shape = [-1, 1] }}]
outputs = [{{ name = "y", datatype = "FP32", shape = [-1, 1] }}]
[emulated]
exec_ms = {{ 1 = {0}, 2 = {1}, 4 = {2} }}
load_ms = 3
"""
SLO_MS = 5_000
BASE, SPIKE, DROP = 8.0, 30.0, 2.0
"""Queries per second."""
STEPS = ((BASE, 10), (SPIKE, 14), (DROP, 48))
"""Rates and seconds. Scaling down follows the highest rate of the last 30 s (`DOWN_SPAN_NS`)."""
LONGEST_NS = s(15)
"""Longest window of the envelope. Nothing is scaled down while a window exceeds the plan's rate."""
PATIENCE_S = 60.0


def a_plan() -> Plan:
    """Return a plan for the base rate, with a sample trace of its own."""
    windows = window_lengths(ms(100), LONGEST_NS)
    envelope = envelope_of(gamma(BASE, 1.0, 300, 7), windows)
    stages = (Placement("a", "a", "v100", 4, throughput=20.0), Placement("b", "b", "v100", 4, throughput=30.0))
    return Plan("chain", ms(SLO_MS), BASE, stages, envelope)


async def send_queries(endpoint: str, arrivals: list[float]) -> Counter[str]:
    """Send one query at each time, in seconds from the start, and count the outcomes."""
    outcomes: Counter[str] = Counter()

    async def send(client: AsyncClient, at_s: float, start_s: float) -> None:
        await asyncio.sleep(start_s + at_s - time.monotonic())
        try:
            await client.predict("chain", np.ones((1, 1), np.float32), slo_ms=SLO_MS)
            outcomes["OK"] += 1
        except HorologeError as error:
            outcomes[error.status.name] += 1

    async with AsyncClient(endpoint) as client:
        start_s = time.monotonic() + 0.2
        await asyncio.gather(*(send(client, at_s, start_s) for at_s in arrivals))
    return outcomes


def status_when(client: Client, hardware: str, count: int) -> dict[str, Any]:
    """Wait until so many devices of a type are connected, and return the tuner's status."""

    def status() -> dict[str, Any]:
        found: dict[str, Any] = client.tune("status")
        return found if found["devices_connected"].get(hardware, 0) == count else {}

    return until(status, PATIENCE_S, (HorologeError,), 0.1)


@contextmanager
def run_system(folder: Path) -> Iterator[RunningServices]:
    """Run the pipeline's models, an edge, a tuner and one worker of the type `cpu`."""
    for name, times in (("a", (40, 60, 100)), ("b", (30, 45, 80))):
        a_folder(folder / "models", name, MANIFEST.format(*times))
    write_pipelines(folder / "models" / "pipelines", {"chain": CHAIN}, slo="5s", datatype="FP32")
    sets = ("worker.pages_bytes=64MiB", "tuner.demand=relative", "tuner.settle_ns=2s")
    with RunningServices(folder, *sets, tuner=True) as system:
        yield system


def send_spike(folder: Path) -> tuple[Counter[str], dict[str, Any]]:
    """Send the queries of `STEPS`. Return how they ended, and the tuner's status."""
    arrivals, begin_s = [], 0.0
    for seed, (rate, seconds) in enumerate(STEPS):
        arrivals += [begin_s + at_ns / 1e9 for at_ns in gamma(rate, 1.0, seconds, seed)]
        begin_s += seconds
    with run_system(folder) as system, Client(system.endpoint) as client:
        apply_plan(client, a_plan(), PATIENCE_S)
        return asyncio.run(send_queries(system.endpoint, arrivals)), client.tune("status")


@pytest.fixture(scope="module")
def spike(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Future[tuple[Counter[str], dict[str, Any]]]]:
    """Start a system with a spike and a drop, which mostly waits, beside that of the other test."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(send_spike, tmp_path_factory.mktemp("spike"))


@pytest.fixture
def system(spike: object, tmp_path: Path) -> Iterator[RunningServices]:
    with run_system(tmp_path) as system:
        yield system


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_queries_survive_a_killed_tuner_and_a_killed_worker(system: RunningServices) -> None:
    endpoint, plan = system.endpoint, a_plan()
    stages = tuple(msgspec.structs.replace(stage, replicas=2) for stage in plan.placements)
    plan = msgspec.structs.replace(plan, placements=stages, envelope=TrafficEnvelope((s(1), s(60)), (1_000, 60_000)))
    timers = [threading.Timer(4, system.kill, ("tuner",)), threading.Timer(8, system.kill, ("worker-2",))]
    with Client(endpoint) as client:
        apply_plan(client, plan, PATIENCE_S)
        for timer in timers:
            timer.start()
        outcomes = asyncio.run(send_queries(endpoint, [number / 40 for number in range(600)]))
        status = status_when(client, "v100", 4)
    assert outcomes == {"OK": 600}
    assert status["plans"][0]["replicas"] == {"a": 2, "b": 2}
    assert system.supervisor.restarts()["tuner"] == system.supervisor.restarts()["worker-2"] == 1


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_spike_and_a_drop_lose_no_query(spike: Future[tuple[Counter[str], dict[str, Any]]]) -> None:
    outcomes, status = spike.result()
    events = [entry["event"] for entry in reversed(status["journal"])]
    assert set(outcomes) == {"OK"}
    assert "scaled up" in events
    assert events[-1] == "scaled down"
    assert status["plans"][0]["replicas"] == {"a": 1, "b": 1}
