"""Pipelines on real processes: served like models, isolated from each other, one answer whatever dies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import numpy as np
import psutil
import pytest

from harness.model_folders import an_emulated_model
from harness.pipeline_folders import write_pipelines
from horologe import Application, AsyncClient, Client
from horologe_cli.local.local_system import LocalSystem
from horologe_cli.local.topology import SystemOptions
from horologe_common.status import HorologeError, ModelFailed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

READY_S = 50
PATIENT_MS = 20_000
DRIVERS = {
    "diamond": """
        import asyncio

        async def run(call, inputs):
            first = await call("a", inputs)
            left, right = await asyncio.gather(call("b", {"x": first["y"]}), call("c", {"x": first["y"]}))
            return {"y": left["y"] + right["y"]}
        """,
    "raises": """
        async def run(call, inputs):
            raise ValueError("broken")
        """,
    "loops": """
        async def run(call, inputs):
            await call("a", inputs)
            if inputs["x"][0, 0] < 0:
                while True:
                    pass
            return {"y": inputs["x"]}
        """,
    "sleeps": """
        import time

        async def run(call, inputs):
            time.sleep(60)
        """,
    "stubborn": """
        async def run(call, inputs):
            while inputs["x"][0, 0] < 0:
                try:
                    while True:
                        pass
                except BaseException:
                    pass
            return {"y": inputs["x"]}
        """,
    "exits": """
        import os

        async def run(call, inputs):
            if inputs["x"][0, 0] < 0:
                os._exit(7)
            await call("a", inputs)
            return {"y": inputs["x"]}
        """,
    "leaks": """
        import numpy as np

        kept = []

        async def run(call, inputs):
            if inputs["x"][0, 0] < 0:
                kept.append(np.ones(1 << 30))
            return {"y": inputs["x"]}
        """,
    "broken": "async def run(call, inputs:",
}


class Running:
    """A system of separate processes with two workers."""

    def __init__(self, folder: Path) -> None:
        models = folder / "models"
        for name in "abc":
            an_emulated_model(models, name)
        write_pipelines(models / "pipelines", DRIVERS, "2s", "FP32", width=4)
        self.endpoint = f"ipc://{folder}/clients"
        self.lines: list[str] = []
        options = SystemOptions(
            str(models), 2, True, "127.0.0.1:0", (self.endpoint,), "off",
            sets=(f"worker.cache={folder}/cache", "selector.store=memory"),
        )  # fmt: skip
        self.local = LocalSystem(options, lambda name, line: self.lines.append(f"{name}: {line}"))

    def kill(self, module: str) -> None:
        """Kill one process that runs the module."""
        for child in psutil.Process().children(recursive=True):
            if module in child.cmdline():
                os.kill(child.pid, signal.SIGKILL)
                return
        raise AssertionError(f"no process runs {module}")


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = Running(tmp_path_factory.mktemp("p"))
    with running.local:
        running.local.wait_ready(READY_S)
        yield running
    assert not [line for line in running.lines if " fault" in line]


@pytest.fixture
def client(system: Running) -> Iterator[Client]:
    with Client(system.endpoint) as client:
        yield client


def tensor(value: float) -> Any:
    return np.full((1, 4), value, np.float32)


def test_a_pipeline_is_served_like_a_model(system: Running, client: Client) -> None:
    assert client.predict("diamond", tensor(3), slo_ms=PATIENT_MS).tolist() == [[6] * 4]
    (state,) = client.models("diamond")
    assert (state.state, state.spec.runtime, state.spec.key) == ("READY", "pipeline", "diamond/1")
    with urlopen(f"{system.local.topology.http}/v2/models/diamond/ready") as response:
        assert response.status == 200
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
    request = Request(
        f"{system.local.topology.http}/v2/models/diamond/infer", json.dumps(body).encode(), {"X-Slo-Ms": "20000"}
    )
    with urlopen(request) as response:
        assert json.load(response)["outputs"][0]["data"] == [2, 4, 6, 8]
    with urlopen(f"{system.local.topology.http}/v2/models/diamond/stats") as response:
        assert json.load(response)["model_stats"][0]["inference_stats"]["success"]["count"] >= 2
    structure = client.pipeline("diamond").structure
    assert structure is not None
    assert {stage.name: stage.parents for stage in structure.stages} == {"a": (), "b": ("a",), "c": ("a",)}


def test_a_pipeline_is_a_member_of_an_application(client: Client) -> None:
    client.declare(Application("both", ("diamond",), slo_ms=PATIENT_MS, task="any"))
    reply = client.ask("both", {"x": tensor(5)})
    assert reply.models == ("diamond",)
    assert reply.outputs["y"].tolist() == [[10] * 4]


def test_a_driver_with_a_syntax_error_is_unavailable(client: Client) -> None:
    (state,) = client.models("broken")
    assert (state.state, state.reason) == ("UNAVAILABLE", "broken.py: line 1: '(' was never closed")


@pytest.mark.parametrize(
    ("pipeline", "reason"),
    [
        ("raises", "ValueError: broken (raises.py, line 3)"),
        ("loops", "the driver executed for more than 8 ms"),
        ("sleeps", "the driver blocked for more than 8 ms"),
        ("stubborn", "the driver did not answer for 1 s"),
        ("exits", "exit code 7"),
        ("leaks", "MemoryError"),
    ],
)
def test_a_faulty_driver_fails_its_query_and_no_other(client: Client, pipeline: str, reason: str) -> None:
    others = [client.submit("diamond", {"x": tensor(number)}, slo_ms=PATIENT_MS) for number in range(10)]
    siblings = [client.submit(pipeline, {"x": tensor(1)}, slo_ms=PATIENT_MS)] * (pipeline not in ("raises", "sleeps"))
    with pytest.raises(ModelFailed) as raised:
        client.predict(pipeline, tensor(-1), slo_ms=PATIENT_MS)
    assert reason in raised.value.reason
    siblings.append(client.submit("loops", {"x": tensor(2)}, slo_ms=PATIENT_MS))
    assert [handle.result().outputs["y"][0, 0] for handle in others] == [2 * number for number in range(10)]
    for handle in siblings:
        handle.result()


@pytest.mark.parametrize(
    "module",
    [
        "horologe_selector",
        "horologe_controller",
        "horologe_gpu_worker",
        "horologe_selector.drivers.driver_process",
        "horologe_frontend",
    ],
)
def test_queries_have_one_answer_each_if_a_process_is_killed(system: Running, module: str) -> None:
    """The victim is killed when a third and two thirds of the queries are sent."""

    async def scenario() -> Counter[str]:
        async with AsyncClient(system.endpoint) as client:
            statuses: Counter[str] = Counter()

            async def ask(number: int) -> None:
                try:
                    result = await client.predict("diamond", tensor(number), slo_ms=3000)
                except HorologeError as error:
                    statuses[error.status.name] += 1
                else:
                    assert result[0].tolist() == [2 * number] * 4
                    statuses["OK"] += 1

            tasks = []
            for number in range(450):
                tasks.append(asyncio.create_task(ask(number)))
                if number in (150, 300):
                    system.kill(module)
                await asyncio.sleep(0.005)
            await asyncio.wait_for(asyncio.gather(*tasks), 20)
            return statuses

    statuses = asyncio.run(scenario())
    assert statuses.total() == 450
    assert statuses["OK"] > 130
    assert set(statuses) <= {"OK", "REFUSED", "LATE", "LOST", "FAILED", "UNKNOWN_MODEL"}
    system.local.wait_ready(READY_S)
