"""The tuner with real processes: it starts and drains workers of `horologe up`, and nothing is lost meanwhile."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from harness.model_folders import an_emulated_model
from harness.offered_load import ClosedLoad
from harness.waiting import until
from horologe import Client
from horologe_cli.local.local_system import LocalSystem
from horologe_cli.local.topology import SystemOptions
from horologe_common.clock import ms, s
from horologe_common.status import HorologeError
from horologe_planning.envelope import TrafficEnvelope
from horologe_planning.plan import Placement, Plan, encode_plans
from horologe_tuner.scalers.process import ProcessScaler
from horologe_tuner.settings import TunerSettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

X = np.zeros((1, 4), np.float32)
SLO_MS = 5_000
ENVELOPE = TrafficEnvelope((ms(100), s(1), s(60)), (10_000, 20_000, 600_000))
ROUNDS = int(os.environ.get("SCALE_DOWN_ROUNDS", "2"))
"""Five scale-downs each. `SCALE_DOWN_ROUNDS=20 pytest tests/system/test_tuner_processes.py` scales down 100 times."""
STAGE = Placement("pretend", "pretend", "v100", 2, throughput=20_000.0)
PLAN = Plan("single", ms(SLO_MS), 10_000.0, (STAGE,), ENVELOPE)
"""For more traffic than a test sends."""


class System:
    """Edge, tuner and one worker of the type `cpu`."""

    def __init__(self, folder: Path) -> None:
        an_emulated_model(folder / "models")
        self.endpoint = f"ipc://{folder}/clients"
        sets = (f"worker.cache={folder}/cache", f"tuner.state={folder}/state",
                "worker.pages_bytes=64MiB", "worker.host_bytes=1MiB")  # fmt: skip
        options = SystemOptions(
            str(folder / "models"), 1, False, "127.0.0.1:0", (self.endpoint,), "off", sets=sets, tuner=True
        )
        self.lines: list[str] = []
        self.local = LocalSystem(options, lambda name, line: self.lines.append(f"{name}: {line}"))

    def kill(self, process: str) -> None:
        """Kill a process, and wait until it has been restarted."""
        supervisor = self.local.supervisor
        restarts = supervisor.restarts()[process]
        os.kill(supervisor.pids()[process], signal.SIGKILL)
        until(lambda: supervisor.restarts()[process] > restarts and process in supervisor.pids())


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    system = System(tmp_path)
    with system.local:
        system.local.wait_ready(60)
        yield system


def connected(client: Client, hardware: str = "v100") -> int:
    try:
        return int(client.tune("status")["devices_connected"].get(hardware, 0))
    except HorologeError:
        return -1


def test_an_applied_plan_starts_workers_and_survives_kills(system: System) -> None:
    with Client(system.endpoint) as client:
        until(lambda: connected(client) >= 0)
        client.tune("apply", encode_plans([PLAN]))
        until(lambda: connected(client) == 1)
        load = ClosedLoad(system.endpoint, 1)
        system.kill("tuner")
        until(lambda: connected(client) == 1)  # it goes on with the plan
        assert client.tune("status")["plans"][0]["name"] == "single"
        outcomes = load.stop()
        assert set(outcomes) == {"OK"}
        assert outcomes.total() == load.sent
        system.kill("edge")
        until(lambda: connected(client) == 1)
        status = client.tune("status")
        assert status["plans"][0]["replicas"] == {"pretend": 1}
        assert client.predict("pretend", X, slo_ms=SLO_MS).shape == X.shape


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_scaling_down_under_load_loses_nothing(system: System) -> None:
    """Five workers start, and drain one after the other, `ROUNDS` times, while requests run on all."""
    scaler = ProcessScaler(TunerSettings(scaler="process", scaler_target=system.local.topology.control))
    load = ClosedLoad(system.endpoint, 4)
    with Client(system.endpoint) as client:
        for _ in range(ROUNDS):
            scaler.set_workers("cpu", 6)
            until(lambda: len(client.describe().shares) == 6)
            for count in range(5, 0, -1):
                time.sleep(0.05)
                scaler.set_workers("cpu", count)
            until(lambda: len(client.describe().shares) == 1)
    outcomes = load.stop()
    assert outcomes == {"OK": load.sent}
