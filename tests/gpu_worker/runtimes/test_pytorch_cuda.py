"""The PyTorch runtime's CUDA code on an emulated device."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (the extra `torch`)")
ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "benchmarks"))

from bench_gpu.pretend import pretend_cuda
from bench_gpu.rig import Rig
from gpu_worker.cuda_cases import *  # noqa: F403 (its tests are run here)
from gpu_worker.cuda_length_cases import *  # noqa: F403
from harness.model_folders import a_pytorch_export, a_pytorch_model, pytorch_exports
from horologe_common.models import PAGE_BYTES
from horologe_common.status import Status
from horologe_common.wire.frames import encode_array
from horologe_gpu_worker.core.lanes import Finished, LaneOperation
from horologe_gpu_worker.execution.device_models import DeviceModels
from horologe_gpu_worker.measurement.share_batches import ShareBatches
from horologe_gpu_worker.repository import profile_cache
from horologe_gpu_worker.repository.modelstore import ModelStore
from horologe_gpu_worker.repository.version_inspector import VersionInspector
from horologe_gpu_worker.runtime import StagedModel
from horologe_gpu_worker.runtimes.pytorch.pytorch_runtime import PytorchRuntime
from horologe_gpu_worker.settings import WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pretend_cuda():
        yield Rig(pretend=True, tiny=True)
    torch.set_num_threads(threads)


@pytest.fixture
def cuda() -> Iterator[PytorchRuntime]:
    with pretend_cuda():
        yield PytorchRuntime(WorkerSettings(device="cuda:0", pages_bytes=4 * PAGE_BYTES, io_cache_bytes=1 << 20))


@pytest.mark.parametrize("kind", ["echo", "convnet", "wide"])
def test_the_runtime_serves_a_folder_on_it(kind: str, tmp_path: Path) -> None:
    folder = a_pytorch_export(tmp_path, kind)
    with pretend_cuda():
        runtime = PytorchRuntime(WorkerSettings(device="cuda:0", pages_bytes=4 * PAGE_BYTES))
        assert not runtime.inline_io
        spec = runtime.inspect(folder)
        runtime.prepare(spec, folder)
        model = runtime.open(spec, folder)
        assert isinstance(model, StagedModel)
        build, row = pytorch_exports().MODELS[kind]
        torch.manual_seed(0)
        module = build().eval()
        for rows in (1, 16, 2):
            x = np.random.default_rng(rows).random((rows, *row), np.float32)
            outputs = model.run(rows, {spec.inputs[0].name: x})
            for name, wanted in module(torch.from_numpy(x)).items():
                np.testing.assert_allclose(outputs[name], wanted.detach().numpy(), rtol=1e-4, atol=1e-6)
        model.close()


def test_several_models_are_loaded_in_turn_on_few_pages(tmp_path: Path) -> None:
    folders = [a_pytorch_model(tmp_path, f"m{number}") for number in range(3)]
    with pretend_cuda():
        runtime = PytorchRuntime(WorkerSettings(device="cuda", pages_bytes=1 * PAGE_BYTES))
        x = np.ones((2, 4), np.float32)
        for folder in folders * 2:
            model = runtime.open(runtime.inspect(folder), folder)
            np.testing.assert_array_equal(model.run(2, {"x": x})["y"], x)
            model.close()


def test_a_program_that_was_read_by_another_process_is_measured_on_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile_cache, "load_driver", lambda: None)
    monkeypatch.setattr(profile_cache, "device_name", lambda driver, device: "Pretend 1")
    folder = a_pytorch_model(tmp_path / "models")
    read = VersionInspector(tmp_path).inspect_version(folder, unmeasured=("pytorch",))
    assert (read.report.profile, read.report.reason) == (None, "")
    with pretend_cuda():
        store = ModelStore(
            tmp_path / "models",
            tmp_path,
            report=lambda line: None,
            settings=WorkerSettings(device="cuda", pages_bytes=2 * PAGE_BYTES, io_cache_bytes=1 << 20),
        )
        report = store.store_version(folder, store.adopt_version(folder, read))
        assert report.profile is not None, report.reason
        assert list((tmp_path / "profiles").glob("pretend-1-torch-*"))
        assert not store.inline_io("program/1")
        store.open(report.spec).close()


def test_batches_go_through_the_lanes_work_between_load_and_unload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile_cache, "load_driver", lambda: None)
    monkeypatch.setattr(profile_cache, "device_name", lambda driver, device: "Pretend 1")
    a_pytorch_model(tmp_path / "models")
    with pretend_cuda():
        store = ModelStore(
            tmp_path / "models",
            tmp_path,
            report=lambda line: None,
            settings=WorkerSettings(device="cuda", pages_bytes=2 * PAGE_BYTES, io_cache_bytes=1 << 20),
        )
        (report,) = store.scan()
        assert report.profile is not None, report.reason
        assert list((tmp_path / "profiles").glob("pretend-1-torch-*"))
        assert not store.inline_io("program/1")
        device = DeviceModels(store)

        def do(lane: str, rows: int = 0, **given: Any) -> Finished:
            done = device.run(LaneOperation(1, 0, lane, "program/1", 2, rows, **given))
            assert done.status == Status.OK, done.reason
            return done

        for _ in range(2):
            do("load")
            for rows in (1, 2):
                x = np.random.default_rng(rows).random((rows, 4), np.float32)
                parts = [memoryview(x[row].tobytes()) for row in range(rows)]
                ready = do("input", rows, inputs=[(encode_array("x", x)[0], parts)])
                ran = do("exec", rows, staged=ready.staged)
                assert ran.device_ns > 0
                [(got, content)] = do("output", rows, staged=ran.staged).outputs
                assert got.shape == (rows, 4)
                np.testing.assert_array_equal(np.frombuffer(content, np.float32).reshape(rows, 4), x)
            do("unload")


def test_the_benchmark_runs_from_a_bare_checkout(tmp_path: Path) -> None:
    """Run with `-I`: only the packages of this environment are on the path."""
    out, page = tmp_path / "gpu.json", tmp_path / "gpu.md"
    command = [sys.executable, "-I", ROOT / "benchmarks" / "gpu.py", "--cpu", "--json", out, "--markdown", page]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    sections = {row["section"] for row in report["rows"]}
    assert {"ceiling", "EXEC alone", "EXEC eager", "LOAD", "INPUT", "EXEC concurrent", "goodput"} <= sections
    assert {"mapped: map", "captured: all batch sizes", "copied: weights"} <= sections
    assert page.read_text().strip() == done.stdout.strip()


def test_what_runs_beside_a_device_imports_no_wire(tmp_path: Path) -> None:
    """Check imports: a GPU machine may have PyTorch and numpy, but neither msgspec nor pyzmq."""
    code = (
        f"import sys; sys.path[:0] = ['{ROOT}/benchmarks', '{ROOT}/tests/gpu_worker', '{ROOT}/tests']\n"
        "sys.modules |= dict(msgspec=None, zmq=None)\n"
        "import gpu, cuda_cases, horologe_gpu_worker.runtimes.pytorch.paging.cuda_pages"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_batches_of_a_share_take_the_time_of_the_device(tmp_path: Path) -> None:
    folder = a_pytorch_export(tmp_path, "convnet")
    with pretend_cuda():
        runtime = PytorchRuntime(WorkerSettings(device="cuda:0", pages_bytes=4 * PAGE_BYTES))
        spec = runtime.inspect(folder)
        runtime.prepare(spec, folder)
        batches = ShareBatches(runtime.open(spec, folder), spec, folder, spec.max_batch)
        times = [batches.run_next() for _ in range(3)]
        batches.close()
    for batch in times:
        assert min(batch) > 0
