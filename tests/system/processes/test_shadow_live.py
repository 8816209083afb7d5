"""A shadow takes over with real processes: overload, switch, the shadow is killed, and every request is answered."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from harness.model_folders import a_folder
from harness.running_services import RunningServices
from harness.waiting import until
from horologe import AsyncClient, Client
from horologe_common.clock import ms, s
from horologe_common.interference.colocation import CoLocatedModel, SharedDevice
from horologe_common.interference.prediction import DEFAULT_INTERFERENCE_MODEL
from horologe_common.interference.v100 import CALIBRATED
from horologe_common.status import HorologeError
from horologe_planning.plan import Placement, Plan, encode_plans

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PATIENCE_S = 60.0
SLO_MS = 1500
PERCENT, SHADOW_PERCENT = 10.0, 20.0
EXEC_S = 0.1
"""Time of a request on the planned share. All times are stretched to this, for machines in use."""
LOAD = 1.5
"""Requests as a multiple of what the planned share can serve. The shadow can serve about twice as many."""
CALM_LOAD = 0.4
"""The same when the shadow is killed: the planned share can serve all requests again."""
MANIFEST = """batch_sizes = [1]
inputs = [{{ name = "x", datatype = "FP32", shape = [-1, 1] }}]
outputs = [{{ name = "y", datatype = "FP32", shape = [-1, 1] }}]
runtime = "emulated"
[emulated]
load_ms = 3
[emulated.sharing]
model = "alexnet"
noise = false
time_factor = {0}
"""


def solo_s(percent: float) -> float:
    """Return the time of a request on a share, without the factor of the manifest."""
    gpu, models = CALIBRATED
    return CoLocatedModel(
        gpu, models["alexnet"], DEFAULT_INTERFERENCE_MODEL, percent, SharedDevice().join()
    ).solo_ns(1) / 1e9  # fmt: skip


def a_plan() -> Plan:
    share = Placement(
        "search", "search", "v100", percent=PERCENT, device="v100-1", throughput=1 / EXEC_S, slo_ns=ms(SLO_MS),
        latency_ns=s(EXEC_S), coefficients="alexnet",
    )  # fmt: skip
    return Plan("search", ms(SLO_MS), 1 / EXEC_S, (share,))


@pytest.fixture
def system(tmp_path: Path) -> Iterator[RunningServices]:
    a_folder(tmp_path / "models", "search", MANIFEST.format(EXEC_S / solo_s(PERCENT)))
    sets = ("worker.pages_bytes=64MiB", f"worker.emulated_device={tmp_path}/gpu")
    with RunningServices(tmp_path, *sets, tuner=True) as system:
        yield system


class Load:
    """Requests at a constant rate, until `stopping` is set. Each has exactly one outcome."""

    def __init__(self, endpoint: str, rate: float) -> None:
        self.outcomes: Counter[str] = Counter()
        self.sent = 0
        self.stopping = False
        self.rate = rate
        self._endpoint = endpoint

    async def run(self) -> None:
        async def send(client: AsyncClient) -> None:
            try:
                await client.predict("search", np.ones((1, 1), np.float32), slo_ms=SLO_MS)
                self.outcomes["OK"] += 1
            except HorologeError as error:
                self.outcomes[error.status.name] += 1

        async with AsyncClient(self._endpoint) as client, asyncio.TaskGroup() as group:
            while not self.stopping:
                self.sent += 1
                group.create_task(send(client))
                await asyncio.sleep(1 / self.rate)


def status_when(client: Client, fulfilled: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait until the tuner's status fulfils a condition, and return it."""

    def status() -> dict[str, Any]:
        found: dict[str, Any] = client.tune("status")
        return found if fulfilled(found) else {}

    return until(status, PATIENCE_S, (HorologeError,), 0.1)


def share_of(status: dict[str, Any]) -> dict[str, Any]:
    share: dict[str, Any] = status["plans"][0]["stages"][0]["shares"][0]
    return share


def events(status: dict[str, Any]) -> list[str]:
    return [entry["event"] for entry in reversed(status["journal"])]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_shadow_takes_over_and_its_death_loses_no_request(system: RunningServices) -> None:
    endpoint = system.endpoint
    load = Load(endpoint, LOAD / EXEC_S)

    def operate() -> dict[str, Any]:
        with Client(endpoint) as client:
            status_when(client, lambda status: "switched up" in events(status))
            switched = status_when(client, lambda status: bool(share_of(status)["percent"] == SHADOW_PERCENT))
            assert share_of(switched)["planned_percent"] == PERCENT
            load.rate = CALM_LOAD / EXEC_S
            time.sleep(2 * SLO_MS / 1000)  # the requests of the overload have ended
            worker = f"worker-search.v100-1.{round(10 * SHADOW_PERCENT)}"
            system.kill(worker)
            status = status_when(client, lambda status: "failed over" in events(status))
            load.stopping = True
            return status

    async def run() -> dict[str, Any]:
        sending = asyncio.create_task(load.run())
        status = await asyncio.to_thread(operate)
        await sending
        return status

    with Client(endpoint) as client:
        status_when(client, lambda status: not status["blind"])  # it is connected
        client.tune("apply", encode_plans([a_plan()]))
        status_when(client, lambda status: bool(status["plans"] and share_of(status)["shadow_ready"]))
    status = asyncio.run(run())
    assert events(status)[0] == "applied"
    assert load.outcomes.total() == load.sent
    assert set(load.outcomes) <= {"OK", "REFUSED", "LATE"}  # late on a machine in use
    assert load.outcomes["OK"] > 0
