"""Outputs beyond `links.max_frame_bytes` in a system of separate processes: answered once, and no link is lost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from harness.http_calls import send_http
from harness.model_folders import ECHO, a_folder, an_emulated_model
from harness.pipeline_folders import write_pipelines
from harness.running_services import RunningServices
from horologe import Application, Client
from horologe_common.status import HorologeError, TooLarge

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.alone  # a process without a processor for a second loses its links

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


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of the sizes that the model `big` has made."""
    return tmp_path_factory.mktemp("runs") / "runs"


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, runs: Path) -> Iterator[RunningServices]:
    models = (folder := tmp_path_factory.mktemp("l")) / "models"
    a_folder(models, "big", "batch_sizes = [1, 2]\n" + ROW, model_py=BIG.format(runs=str(runs)))
    a_folder(models, "sink", SINK, model_py=ECHO)
    an_emulated_model(models, "small")
    write_pipelines(models / "pipelines", {"grow": GROW}, "20s", "FP32", width=1)
    pipelines = models / "pipelines" / "pipeline.toml"
    inputs, outputs, end = pipelines.read_text().partition("outputs = ")
    pipelines.write_text(inputs + outputs + end.replace("shape = [-1, 1]", "shape = [-1, -1]"))
    sets = ("selector.store=memory", f"links.max_frame_bytes={LIMIT}B", "selector.pipeline_step_ns=2s")
    with RunningServices(folder, *sets, split=True) as system:
        yield system
        assert not [line for line in system.lines if "link lost" in line]


def executed(runs: Path, size: int) -> int:
    return runs.read_text().split().count(str(size))


def infer(system: RunningServices, size: int) -> tuple[int, bytes]:
    """Return status and content of a request to the model `big` over HTTP."""
    body = {
        "inputs": [{"name": "n", "datatype": "INT64", "shape": [1, 1], "data": [size]}],
        "parameters": {"binary_data_output": True, "slo_ms": PATIENT_MS},
    }
    return send_http(
        "POST", f"{system.topology.http}/v2/models/big/infer", json.dumps(body).encode(), timeout_s=PATIENT_MS / 1000
    )


@pytest.fixture
def client(system: RunningServices) -> Iterator[Client]:
    with Client(system.endpoint) as client:
        yield client


def size_of(*sizes: int) -> Any:
    return {"n": np.array([[size] for size in sizes], np.int64)}


def test_the_largest_output_is_answered_over_both_protocols(system: RunningServices, client: Client) -> None:
    assert client.submit("big", size_of(FITS), slo_ms=PATIENT_MS).result().outputs["y"].shape == (1, FITS)
    status, content = infer(system, FITS)
    assert status == 200
    assert len(content) > FITS


def test_a_larger_output_is_executed_once_and_answered_too_large(
    system: RunningServices, client: Client, runs: Path
) -> None:
    with pytest.raises(TooLarge, match=f"outputs: got {TOO_MUCH} bytes, wanted at most {LIMIT}"):
        client.submit("big", size_of(TOO_MUCH), slo_ms=PATIENT_MS).result()
    status, content = infer(system, TOO_MUCH + 1)
    assert (status, json.loads(content)["status"]) == (413, "TOO_LARGE")
    assert (executed(runs, TOO_MUCH), executed(runs, TOO_MUCH + 1)) == (1, 1)


def test_two_rows_that_are_too_large_only_together_are_both_answered(client: Client) -> None:
    """As a request of two rows they are too large; as two requests of one batch they are sent one after the other."""
    each = LIMIT * 2 // 3
    with pytest.raises(TooLarge):
        client.submit("big", size_of(each, each), slo_ms=PATIENT_MS).result()
    handles = [client.submit("big", size_of(each), slo_ms=PATIENT_MS) for _ in range(4)]
    assert [handle.result().outputs["y"].shape for handle in handles] == [(1, each)] * 4


def test_requests_beside_too_large_ones_are_answered(client: Client) -> None:
    large = [client.submit("big", size_of(2 * LIMIT + number), slo_ms=PATIENT_MS) for number in range(4)]
    for _ in range(20):
        client.predict("small", np.ones((1, 4), np.float32), slo_ms=PATIENT_MS)
    for handle in large:
        with pytest.raises(TooLarge):
            handle.result()


def test_a_driver_that_sends_too_much_ends_only_its_query(system: RunningServices, client: Client) -> None:
    inputs = [{"x": np.array([[size]], np.float32)} for size in (3, LIMIT // 4 + 1, -(LIMIT // 4 + 1), 5)]
    beside, result, call, after = [client.submit("grow", x, slo_ms=PATIENT_MS) for x in inputs]
    for too_large in (result, call):
        with pytest.raises(TooLarge, match=r"pipeline grow: .*wanted at most"):
            too_large.result()
    assert (beside.result().outputs["y"].shape, after.result().outputs["y"].shape) == ((1, 3), (1, 5))
    assert not [line for line in system.lines if "driver ended" in line]


def test_an_application_names_the_size(client: Client) -> None:
    client.declare(Application("all", ("big",), slo_ms=PATIENT_MS, task="any"))
    with pytest.raises(HorologeError, match="outputs: got"):
        client.ask("all", size_of(TOO_MUCH))
    assert client.ask("all", size_of(7)).outputs["y"].shape == (1, 7)
