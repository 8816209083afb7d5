"""One `horologe up` with models that are slow, change, crash, hang, or fail on made-up inputs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gpu_worker.repository_harness import a_dividing_graph, an_input, an_output
from harness.model_folders import ECHO, a_folder, a_python_model, an_emulated_model
from harness.running_up import HOROLOGE, Up
from harness.waiting import until
from horologe import AsyncClient, Client
from horologe_common.status import HorologeError, Lost, ModelFailed, Refused, UnknownModel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SLOW = """
import time
from pathlib import Path

while not Path({!r}).exists():
    time.sleep(0.05)
"""
COMMANDED = """
import ctypes, os

class Model:
    def predict_batch(self, inputs):
        command = inputs["x"][0, 0]
        if command == 1:
            os._exit(7)
        if command == 2:
            ctypes.string_at(0)
        while command == 3:
            pass
        return {"y": inputs["x"]}
"""
FINE, EXIT, SEGFAULT, HANG = 0, 1, 2, 3
CHOOSY = """
import os
class Model:
    def predict_batch(self, inputs):
        x = inputs["x"]
        if not x.all():
            os._exit(3)
        return {"y": 1 / x}
"""
BROKEN = """
class Model:
    def predict_batch(self, inputs):
        raise ValueError("never works")
"""
NOTE = "not measured yet: failed on made-up inputs: "
INPUT = "[[1, 2, 3, 4]]"
X = np.ones((1, 4), np.float32)
PATIENCE_MS = 20_000
"""Longer than the `timeout` of a hanging batch."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("up") / "models"
    an_emulated_model(models)
    a_python_model(models)
    a_python_model(models, "import time\ntime.sleep(2)\n" + ECHO, name="sleepy")
    a_python_model(models, COMMANDED, name="commanded", timeout='"500ms"')
    a_python_model(models, CHOOSY, name="choosy", memory_limit='"2GiB"')
    a_python_model(models, BROKEN, name="broken")
    signature = an_input("x", "INT64", [-1, 2]) + an_output("INT64", [-1, 2])
    a_folder(models, "division", signature, model_onnx=a_dividing_graph())
    return models


@pytest.fixture(scope="module")
def up(models: Path) -> Iterator[Up]:
    folder = models.parent
    records = f"recorder.directory={folder / 'recordings'}"
    up = Up(folder, "--no-profiler", "--no-tuner", "--set", records, HOROLOGE_WORKER_CACHE=str(folder / "cache"))
    yield up
    up.stop(signal.SIGKILL)


@pytest.fixture
def client(up: Up) -> Iterator[Client]:
    with Client(up.ready["clients"][0]) as client:
        yield client


def states(up: Up) -> dict[str, tuple[str, str]]:
    return {model["name"]: (model["state"], model["reason"]) for model in up.ask("models")}


def test_models_that_fail_on_made_up_inputs_have_a_note_and_are_measured_by_requests(up: Up) -> None:
    shown = {model["name"]: (model["state"], model["reason"]) for model in up.ready["models"]}
    assert {state for state, _ in shown.values()} == {"READY"}
    for name, text in {"choosy": "exit code 3", "broken": "never works", "division": "division by zero"}.items():
        assert shown[name][1].startswith(NOTE)
        assert text in shown[name][1]
    for number in range(6):
        assert up.infer("choosy", [[1, 2, 4, 8]], slo_ms=5000) == (200, [1, 0.5, 0.25, 0.125])
        assert up.infer("division", [[3, 4], [1, 2]][: 1 + number % 2], "INT64", slo_ms=5000)[0] == 200
        status, error = up.infer("broken", slo_ms=5000)
        assert (status, "never works" in error) == (500, True), error
    until(lambda: states(up)["choosy"] == ("READY", ""), 10)
    assert states(up)["broken"][1].startswith(NOTE)
    status, error = up.infer("choosy", [[0, 1, 1, 1]], slo_ms=5000)
    assert (status, "exit code 3" in error) == (500, True), error
    assert up.infer("division", [[3, 4]], "INT64", slo_ms=100) == (200, [4, 3])
    up.ask("load", "choosy")
    assert states(up)["choosy"] == ("READY", "")


def test_a_crash_of_a_model_is_logged_and_counted(up: Up) -> None:
    url = up.ready["metrics"]["worker-0"]
    metric = 'horologe_model_failures_total{model="commanded",version="1",cause="crash"}'
    assert f"{metric} 0\n" in up.get(url)[1].decode()
    failure = up.ask("predict", "commanded", "--input", INPUT, "--slo-ms", "20000", code=1)
    assert "FAILED: model commanded/1: process ended (exit code 7)" in failure
    assert f"{metric} 1\n" in up.get(url)[1].decode()
    (line,) = [line for line in up.read_log().splitlines() if "model process ended" in line and "commanded/1" in line]
    assert all(word in line for word in ("cause=crash", "exit code 7"))


@pytest.mark.parametrize(
    ("command", "message"),
    [(EXIT, r"exit code 7"), (SEGFAULT, "SIGSEGV"), (HANG, r"no answer within 0\.5 s")],
    ids=["exit", "segfault", "endless-loop"],
)
def test_a_crash_of_a_model_does_not_affect_others(up: Up, command: int, message: str) -> None:
    async def ask(client: AsyncClient, model: str, value: int) -> None:
        x = np.full((1, 4), value, np.float32)
        np.testing.assert_array_equal(await client.predict(model, x, slo_ms=PATIENCE_MS), x)

    async def scenario() -> None:
        async with AsyncClient(up.ready["clients"][0]) as client:
            await asyncio.wait_for(serve(client), 20)
            bad = asyncio.ensure_future(ask(client, "commanded", command))
            others = []
            for number in range(100):  # before, during and after: none of them may fail
                others.append(asyncio.ensure_future(ask(client, "code", number)))
                await asyncio.sleep(0.01)
            with pytest.raises(ModelFailed, match=message):
                await bad
            await asyncio.gather(*others)
            await asyncio.wait_for(serve(client), 20)

    async def serve(client: AsyncClient) -> None:
        while True:
            try:
                return await ask(client, "commanded", FINE)
            except HorologeError:
                await asyncio.sleep(0.05)

    asyncio.run(scenario())


def test_load_waits_for_a_model_that_is_slow_to_construct(up: Up, models: Path) -> None:
    constructed = models.parent / "constructed"
    a_python_model(models, SLOW.format(str(constructed)) + ECHO, name="slow")
    assert "is still loading after 1 s" in up.ask("load", "slow", "--timeout", "1", code=1)
    full = [*HOROLOGE, "load", "slow", "--endpoint", up.ready["clients"][0]]
    pipe = subprocess.PIPE
    with subprocess.Popen(full, stdout=pipe, stderr=pipe, text=True, cwd=models.parent, env=up.env) as load:
        assert load.stderr
        assert "horologe: loading slow for" in load.stderr.readline()
        constructed.touch()
        assert "READY" in load.communicate(timeout=40)[0]
    assert load.returncode == 0
    assert [model["name"] for model in up.ask("models", "slow")] == ["slow"]
    assert "'nothing'" in up.ask("models", "nothing", code=1)
    assert "not in any worker's repository" in up.ask("load", "nothing", "--no-wait", code=1)


def test_a_broken_model_leaves_the_content_before_until_it_is_mended(client: Client, models: Path) -> None:
    source = models / "code" / "1" / "model.py"
    before = client.predict_full("code", X, timeout=20, content_hash=True)
    source.write_text("raise RuntimeError('no licence')\n")
    with pytest.raises(ModelFailed, match=r"serves the content before: .*RuntimeError: no licence"):
        client.admit("code")
    (state,) = client.models("code")
    assert (state.state, state.spec.content_hash) == ("READY", before.content_hashes[0])
    assert "no licence" in state.reason
    assert client.predict_full("code", X, content_hash=True).content_hashes == before.content_hashes
    source.write_text("class Model:\n    def predict_batch(self, inputs):\n        return {'y': inputs['x'] * 3}\n")
    (state,) = client.admit("code")
    after = client.predict_full("code", X, content_hash=True)
    assert (after.value.tolist(), after.content_hashes) == ([[3, 3, 3, 3]], (state.spec.content_hash,))
    assert state.reason == ""
    assert client.predict_full("code", X).content_hashes == ()


def test_a_signal_writes_the_recordings_of_all_services(up: Up, models: Path) -> None:
    up.process.send_signal(signal.SIGUSR1)
    until(lambda: len(list((models.parent / "recordings").glob("*-asked.rec"))) == 2)
    up.ask("predict", "pretend", "--input", INPUT, "--slo-ms", "20000")


def test_a_model_of_a_restarted_worker_is_never_unknown(up: Up, client: Client) -> None:
    stopped, statuses = threading.Event(), set[int]()

    def ask() -> None:
        while not stopped.is_set():
            statuses.update(up.infer(model, slo_ms=300)[0] for model in ("sleepy", "pretend"))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        os.kill(up.ready["processes"]["worker-0"], signal.SIGKILL)
        until(lambda: {state.state for state in client.models()} == {"LOADING"})
        assert up.get(f"{up.ready['http']}/v2/health/ready")[0] == 200, "it has been ready before"
        until(lambda: {state.state for state in client.models()} == {"READY"})
        with pytest.raises(UnknownModel):
            client.predict("nothing", X, slo_ms=300)
        until(lambda: 200 in statuses)
    finally:
        stopped.set()
        asking.join()
    assert statuses <= {200, 429, 503, 504}


def test_a_load_of_one_model_does_not_wait_for_another_that_hangs(up: Up, client: Client, models: Path) -> None:
    a_python_model(models, "while True: pass\n", name="hang", load_timeout='"1000s"')
    a_python_model(models, name="fine")

    def load_hanging() -> None:
        with Client(up.ready["clients"][0]) as other, suppress(Lost):
            other.admit("hang", "", True, timeout=12)

    hanging = threading.Thread(target=load_hanging, daemon=True)
    hanging.start()
    until(lambda: any(state.spec.name == "hang" for state in client.models()))
    (state,) = client.admit("fine", "", True, timeout=30)
    assert state.state == "READY"
    assert [state.state for state in client.models("hang")] == ["LOADING"]
    with pytest.raises(Refused, match="is loading"):
        client.predict("hang", X, slo_ms=300)
    hanging.join(20)
