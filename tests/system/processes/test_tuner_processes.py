"""The tuner with real processes: it starts and drains workers of `horologe up`, and nothing is lost meanwhile."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from harness.model_folders import an_emulated_model
from harness.offered_load import ClosedLoad
from harness.running_services import RunningServices
from harness.waiting import until
from horologe import Client
from horologe_common.clock import ms, s
from horologe_common.status import HorologeError
from horologe_planning.envelope import TrafficEnvelope
from horologe_planning.plan import Placement, Plan, encode_plans
from horologe_tuner.scalers.process import ProcessScaler
from horologe_tuner.settings import TunerSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

X = np.zeros((1, 4), np.float32)
SLO_MS = 5_000
ENVELOPE = TrafficEnvelope((ms(100), s(1), s(60)), (10_000, 20_000, 600_000))
ROUNDS = int(os.environ.get("SCALE_DOWN_ROUNDS", "2"))
"""Five scale-downs each. `SCALE_DOWN_ROUNDS=20 pytest tests/system/test_tuner_processes.py` scales down 100 times."""
STAGE = Placement("pretend", "pretend", "v100", 2, throughput=20_000.0)
PLAN = Plan("single", ms(SLO_MS), 10_000.0, (STAGE,), ENVELOPE)
"""For more traffic than a test sends."""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServices]:
    folder = tmp_path_factory.mktemp("t")
    an_emulated_model(folder / "models")
    with RunningServices(folder, "worker.pages_bytes=64MiB", "worker.host_bytes=1MiB", tuner=True) as system:
        yield system


def restart(system: RunningServices, process: str) -> None:
    """Kill a process, and wait until it has been restarted."""
    first = system.pid(process)
    system.kill(process)
    until(lambda: system.pid(process) != first)


def wait_for_workers(client: Client, count: int) -> None:
    """Wait until the tuner is connected, and so many workers of the type v100 are."""
    until(lambda: client.tune("status")["devices_connected"].get("v100", 0) == count, retry=(HorologeError,))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_scaling_down_under_load_loses_nothing(system: RunningServices) -> None:
    """Five workers start, and drain one after the other, `ROUNDS` times, while requests run on all."""
    scaler = ProcessScaler(TunerSettings(scaler="process", scaler_target=system.topology.control))
    load = ClosedLoad(system.endpoint, 4)
    with Client(system.endpoint) as client:
        for _ in range(ROUNDS):
            scaler.set_workers("cpu", 6)
            until(lambda: len(client.describe().shares) == 6)
            for count in range(5, 0, -1):
                time.sleep(0.05)
                scaler.set_workers("cpu", count)
            until(lambda: len(client.describe().shares) == 1)
    assert load.stop() == {"OK": load.sent}


def test_an_applied_plan_starts_workers_and_survives_kills(system: RunningServices) -> None:
    with Client(system.endpoint) as client:
        wait_for_workers(client, 0)
        client.tune("apply", encode_plans([PLAN]))
        wait_for_workers(client, 1)
        load = ClosedLoad(system.endpoint, 1)
        restart(system, "tuner")
        wait_for_workers(client, 1)  # it goes on with the plan
        assert client.tune("status")["plans"][0]["name"] == "single"
        restart(system, max(name for name in system.supervisor.pids() if name.startswith("worker-")))
        wait_for_workers(client, 1)
        assert load.stop() == {"OK": load.sent}
        restart(system, "edge")
        wait_for_workers(client, 1)
        status = client.tune("status")
        assert status["plans"][0]["replicas"] == {"pretend": 1}
        assert client.predict("pretend", X, slo_ms=SLO_MS).shape == X.shape
