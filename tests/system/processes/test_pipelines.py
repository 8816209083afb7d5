"""Pipelines on real processes: served like models, isolated from each other, one answer whatever dies."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest

from harness.http_calls import infer, send_http
from harness.model_folders import an_emulated_model
from harness.pipeline_folders import write_pipelines
from harness.running_services import READY_S, RunningServices
from horologe import Application, AsyncClient, Client
from horologe_common.status import HorologeError, ModelFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

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


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServices]:
    folder = tmp_path_factory.mktemp("p")
    for name in "abc":
        an_emulated_model(folder / "models", name)
    write_pipelines(folder / "models" / "pipelines", DRIVERS, "2s", "FP32", width=4)
    with RunningServices(folder, "selector.store=memory", workers=2, split=True) as system:
        yield system


def kill(system: RunningServices, victim: str) -> None:
    """Kill a process of the services, or one of a driver."""
    if victim != "driver":
        return system.kill(victim)
    children = psutil.Process(system.pid("selector")).children()
    next(child for child in children if "horologe_selector.drivers.driver_process" in child.cmdline()).kill()


@pytest.fixture
def client(system: RunningServices) -> Iterator[Client]:
    with Client(system.endpoint) as client:
        yield client


def tensor(value: float) -> Any:
    return np.full((1, 4), value, np.float32)


def test_a_pipeline_is_served_like_a_model(system: RunningServices, client: Client) -> None:
    assert client.predict("diamond", tensor(3), slo_ms=PATIENT_MS).tolist() == [[6] * 4]
    (state,) = client.models("diamond")
    assert (state.state, state.traffic, state.spec.runtime, state.spec.key) == ("READY", 1.0, "pipeline", "diamond/1")
    http = system.topology.http
    assert send_http("GET", f"{http}/v2/models/diamond/ready")[0] == 200
    assert infer(http, "diamond", headers={"X-Slo-Ms": "20000"}) == (200, [2, 4, 6, 8])
    (stats,) = json.loads(send_http("GET", f"{http}/v2/models/diamond/stats")[1])["model_stats"]
    assert stats["inference_stats"]["success"]["count"] >= 2
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
    assert (state.state, state.traffic, state.reason) == ("UNAVAILABLE", 0.0, "broken.py: line 1: '(' was never closed")


@pytest.mark.parametrize(
    ("pipeline", "reason"),
    [
        ("raises", "ValueError: broken (raises.py, line 3)"),
        ("loops", "the driver executed for more than 8 ms (selector.pipeline_step_ns) without a call (loops.py, line "),
        (
            "sleeps",
            "the driver blocked for more than 8 ms (selector.pipeline_step_ns) without a call (sleeps.py, line ",
        ),
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


@pytest.mark.alone  # it counts what is answered while a process starts
@pytest.mark.parametrize("victim", ["selector", "controller", "worker-0", "driver", "frontend"])
def test_queries_have_one_answer_each_if_a_process_is_killed(system: RunningServices, victim: str) -> None:
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
                    kill(system, victim)
                await asyncio.sleep(0.005)
            await asyncio.wait_for(asyncio.gather(*tasks), 20)
            return statuses

    statuses = asyncio.run(scenario())
    assert statuses.total() == 450
    assert statuses["OK"] > 130
    assert set(statuses) <= {"OK", "REFUSED", "LATE", "LOST", "FAILED"}
    system.wait_ready(READY_S)
