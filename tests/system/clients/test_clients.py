"""Clients of Triton and KServe, unchanged: every call passes or is refused, as docs/clients.md says."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest
from onnx import TensorProto

from harness.kserve_client import kserve_python
from harness.model_folders import a_folder, a_python_model, onnx_bytes
from harness.running_up import Up
from system.clients.client_calls import PASSED, REFUSED
from system.clients.client_tables import Row, Run, check_section, run_client, take
from system.clients.recorders import GrpcRecorder, HttpRecorder

if TYPE_CHECKING:
    from collections.abc import Iterator

REQUESTS = 100
HALVES = """
[[inputs]]
name = "x"
datatype = "FP16"
shape = [-1, 4]

[[outputs]]
name = "y"
datatype = "FP16"
shape = [-1, 4]
"""
ECHO = """
class Model:
    def predict_batch(self, inputs):
        return {"y": inputs["x"]}
"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("up")
    for name in ("echo", "spare"):
        a_python_model(folder / "models", name=name)
    a_folder(folder / "models", "half", "batch_sizes = [1, 2]\n" + HALVES, model_py=ECHO)
    a_folder(
        folder / "models",
        "text",
        "batch_sizes = [1, 2]\n",
        model_onnx=onnx_bytes(["rows"], datatype=TensorProto.STRING),
    )
    up = Up(folder, "--no-tuner", "--no-profiler")
    yield up
    assert up.stop(signal.SIGTERM) == 0


@pytest.fixture
def http(up: Up) -> Iterator[HttpRecorder]:
    with HttpRecorder(up.ready["http"]) as recorder:
        yield recorder


@pytest.fixture
def rpc(up: Up) -> Iterator[GrpcRecorder]:
    with GrpcRecorder(up.ready["grpc"]) as recorder:
        yield recorder


def test_triton_over_http(http: HttpRecorder) -> None:
    kinds = ("http", "http.aio")
    check_section("tritonclient over HTTP", {kind: run_client("triton_calls", kind, http) for kind in kinds})


def test_triton_over_grpc(rpc: GrpcRecorder) -> None:
    kinds = ("grpc", "grpc.aio")
    check_section("tritonclient over gRPC", {kind: run_client("triton_calls", kind, rpc) for kind in kinds})


def test_kserve_over_http(http: HttpRecorder) -> None:
    check_section("kserve over HTTP", {"result": run_client("kserve_calls", "rest", http, kserve_python())})


def test_kserve_over_grpc(rpc: GrpcRecorder) -> None:
    check_section("kserve over gRPC", {"result": run_client("kserve_calls", "grpc", rpc, kserve_python())})


def analyze(up: Up, recorder: HttpRecorder | GrpcRecorder, *options: str, rows: int = 1) -> Row:
    """Run perf_analyzer, and compare its report with the statistics of the server."""

    def count() -> tuple[int, int]:
        (stats,) = json.loads(up.get(f"{up.ready['http']}/v2/models/echo/stats")[1])["model_stats"]
        counts = {part: stats["inference_stats"][f"compute_{part}"]["count"] for part in ("input", "infer", "output")}
        assert set(counts.values()) == {stats["inference_stats"]["success"]["count"]}
        return counts["infer"], stats["inference_count"]

    before = count()
    command = ["perf_analyzer", "-m", "echo", "-u", recorder.address, "--request-count", str(REQUESTS), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    requests, inferences = (after - earlier for after, earlier in zip(count(), before, strict=True))
    report = re.search(r"queue \d+ usec \+ compute input 0 usec \+ compute infer \d+ usec", done.stdout)
    is_right = done.returncode == 0 and report and requests >= REQUESTS and inferences == rows * requests
    return Row(" ".join(options), take(recorder), PASSED if is_right else done.stdout + done.stderr)


def refuse_shared_memory(recorder: HttpRecorder | GrpcRecorder, *options: str) -> Row:
    options = (*options, "--shared-memory", "system")
    command = ["perf_analyzer", "-m", "echo", "-u", recorder.address, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    message = re.search(r"shared memory is not supported[^\n]*", done.stdout + done.stderr)
    is_right = done.returncode != 0 and message
    return Row(" ".join(options), take(recorder), REFUSED if is_right else done.stdout, message[0] if message else "")


def test_perf_analyzer(up: Up, http: HttpRecorder, rpc: GrpcRecorder) -> None:
    if shutil.which("perf_analyzer") is None:
        pytest.skip("perf_analyzer is not on the PATH (see docs/http.md)")
    grpc = ("-i", "grpc")
    rows = [
        analyze(up, http, "--concurrency-range", "2"),
        analyze(up, http, "--concurrency-range", "2", "-b", "2", "--async", rows=2),
        analyze(up, http, "--request-rate-range", "100", "--request-distribution", "poisson"),
        refuse_shared_memory(http),
        analyze(up, rpc, *grpc, "--concurrency-range", "2"),
        analyze(up, rpc, *grpc, "--request-rate-range", "100", "-b", "2", "--async", rows=2),
        analyze(up, rpc, *grpc, "--concurrency-range", "2", "--streaming"),
        refuse_shared_memory(rpc, *grpc),
    ]
    check_section("perf_analyzer", {"result": Run("perf_analyzer", rows)})
