"""Outputs beyond `links.max_frame_bytes` in a system of separate processes: answered once, and no link is lost."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest

from harness.model_folders import a_folder, an_emulated_model
from harness.pipeline_folders import write_pipelines
from horologe import Application, Client
from horologe_cli.local.local_system import LocalSystem
from horologe_cli.local.topology import SystemOptions
from horologe_common.status import HorologeError, TooLarge

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


LIMIT = 16 << 20
FITS, TOO_MUCH = LIMIT - 1000, LIMIT + 1000
PATIENT_MS = 20_000
BIG = """
import numpy as np

class Model:
    def predict_batch(self, inputs):
        sizes = inputs["n"].ravel()
        with open({runs!r}, "a") as runs:
            runs.write("".join(str(size) + " " for size in sizes))
        return {{"y": np.zeros((len(sizes), int(max(sizes))), np.uint8)}}
"""
GROW = """
    import numpy as np

    async def run(call, inputs):
        size = int(inputs["x"][0, 0])
        if size < 0:
            await call("sink", {"x": np.zeros((1, -size), np.float32)})
        return {"y": np.zeros((1, size), np.float32)}
    """
ROW = """
inputs = [{ name = "n", datatype = "INT64", shape = [-1, 1] }]
outputs = [{ name = "y", datatype = "UINT8", shape = [-1, -1] }]
"""
SINK = """
inputs = [{ name = "x", datatype = "FP32", shape = [-1, -1] }]
outputs = [{ name = "y", datatype = "FP32", shape = [-1, -1] }]
"""


class Running:
    def __init__(self, folder: Path) -> None:
        models = folder / "models"
        self.runs = folder / "runs"
        a_folder(models, "big", "batch_sizes = [1, 2]\n" + ROW, model_py=BIG.format(runs=str(self.runs)))
        a_folder(
            models,
            "sink",
            SINK,
            model_py="class Model:\n    def predict_batch(self, inputs):\n        return {'y': inputs['x']}\n",
        )
        an_emulated_model(models, "small")
        write_pipelines(models / "pipelines", {"grow": GROW}, "20s", "FP32", width=1)
        pipelines = models / "pipelines" / "pipeline.toml"
        pipelines.write_text(
            pipelines.read_text().replace(
                'outputs = [{name = "y", datatype = "FP32", shape = [-1, 1]}]',
                'outputs = [{name = "y", datatype = "FP32", shape = [-1, -1]}]',
            )
        )
        self.endpoint = f"ipc://{folder}/clients"
        self.lines: list[str] = []
        options = SystemOptions(
            str(models), 1, True, "127.0.0.1:0", (self.endpoint,), "off",
            sets=(
                f"worker.cache={folder}/cache", "selector.store=memory",
                f"links.max_frame_bytes={LIMIT}B", "selector.pipeline_step_ns=2s",
            ),
        )  # fmt: skip
        self.local = LocalSystem(options, lambda name, line: self.lines.append(f"{name}: {line}"))

    def executed(self, size: int) -> int:
        return self.runs.read_text().split().count(str(size))

    def infer(self, model: str, size: int) -> tuple[int, Any]:
        """Return status and document of a request over HTTP."""
        body = {
            "inputs": [{"name": "n", "datatype": "INT64", "shape": [1, 1], "data": [size]}],
            "parameters": {"binary_data_output": True, "slo_ms": PATIENT_MS},
        }
        try:
            with urlopen(
                Request(f"{self.local.topology.http}/v2/models/{model}/infer", json.dumps(body).encode())
            ) as response:
                return response.status, len(response.read())
        except HTTPError as error:
            return error.code, json.loads(error.read())


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = Running(tmp_path_factory.mktemp("l"))
    with running.local:
        running.local.wait_ready(50)
        yield running
        assert not [line for line in running.lines if "link lost" in line or " fault" in line]


@pytest.fixture
def client(system: Running) -> Iterator[Client]:
    with Client(system.endpoint) as client:
        yield client


def size_of(*sizes: int) -> Any:
    return {"n": np.array([[size] for size in sizes], np.int64)}


def test_the_largest_output_is_answered_over_both_protocols(system: Running, client: Client) -> None:
    assert client.submit("big", size_of(FITS), slo_ms=PATIENT_MS).result().outputs["y"].shape == (1, FITS)
    status, size = system.infer("big", FITS)
    assert status == 200
    assert size > FITS


def test_a_larger_output_is_executed_once_and_answered_too_large(system: Running, client: Client) -> None:
    with pytest.raises(TooLarge, match=f"outputs: got {TOO_MUCH} bytes, wanted at most {LIMIT}"):
        client.submit("big", size_of(TOO_MUCH), slo_ms=PATIENT_MS).result()
    status, document = system.infer("big", TOO_MUCH + 1)
    assert (status, document["status"]) == (413, "TOO_LARGE")
    assert (system.executed(TOO_MUCH), system.executed(TOO_MUCH + 1)) == (1, 1)


def test_two_rows_that_are_too_large_only_together_are_both_answered(client: Client) -> None:
    """As a request of two rows they are too large; as two requests of one batch they are sent one after the other."""
    each = LIMIT * 2 // 3
    with pytest.raises(TooLarge):
        client.submit("big", size_of(each, each), slo_ms=PATIENT_MS).result()
    handles = [client.submit("big", size_of(each), slo_ms=PATIENT_MS) for _ in range(4)]
    assert [handle.result().outputs["y"].shape for handle in handles] == [(1, each)] * 4


def test_requests_beside_too_large_ones_are_answered(system: Running) -> None:
    large: list[int] = []

    def ask() -> None:
        large.extend(system.infer("big", 2 * LIMIT + number)[0] for number in range(4))

    with Client(system.endpoint) as client:
        thread = threading.Thread(target=ask)
        thread.start()
        answered = 0
        while thread.is_alive():
            client.predict("small", np.ones((1, 4), np.float32), slo_ms=PATIENT_MS)
            answered += 1
        thread.join()
    assert large == [413] * 4
    assert answered > 0


def ask_pipeline(client: Client, size: int) -> Any:
    return client.submit("grow", {"x": np.array([[size]], np.float32)}, slo_ms=PATIENT_MS).result()


@pytest.mark.parametrize("size", [LIMIT // 4 + 1, -(LIMIT // 4 + 1)], ids=["result", "call"])
def test_a_driver_that_sends_too_much_ends_only_its_query(system: Running, client: Client, size: int) -> None:
    beside = client.submit("grow", {"x": np.array([[3]], np.float32)}, slo_ms=PATIENT_MS)
    with pytest.raises(TooLarge, match=r"pipeline grow: .*wanted at most"):
        ask_pipeline(client, size)
    assert beside.result().outputs["y"].shape == (1, 3)
    assert ask_pipeline(client, 5).outputs["y"].shape == (1, 5)
    assert not [line for line in system.lines if "driver ended" in line]


def test_an_application_names_the_size(client: Client) -> None:
    client.declare(Application("all", ("big",), slo_ms=PATIENT_MS, task="any"))
    with pytest.raises(HorologeError, match="outputs: got"):
        client.ask("all", size_of(TOO_MUCH))
    assert client.ask("all", size_of(7)).outputs["y"].shape == (1, 7)
