"""Models that allocate memory of a CUDA device themselves, on an emulated device: Python models, and ONNX Runtime."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import onnxruntime
import pytest

from harness.model_folders import a_python_model, an_onnx_model
from horologe_common.models import PAGE_BYTES
from horologe_common.status import ModelFailed
from horologe_gpu_worker.repository.manifest import InvalidModel
from horologe_gpu_worker.repository.manifest_fields import Manifest
from horologe_gpu_worker.runtimes.onnx import onnx_runtime, providers
from horologe_gpu_worker.runtimes.python.python_runtime import PythonRuntime
from horologe_gpu_worker.runtimes.pytorch.paging import device_pages
from horologe_gpu_worker.runtimes.pytorch.paging.host_pages import HostBacking
from horologe_gpu_worker.runtimes.pytorch.paging.page_pool import PagePool
from horologe_gpu_worker.settings import WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Callable

CUDA = WorkerSettings(device="cuda:1", pages_bytes=8 * PAGE_BYTES)
USER = """
import os
import numpy as np
import torch

class Model:
    def predict_batch(self, inputs):
        visible, limit = os.environ["CUDA_VISIBLE_DEVICES"], os.environ.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "")
        assert (visible, limit, torch.cuda.fraction) == EXPECTED, (visible, limit, torch.cuda.fraction)
        return {"y": inputs["x"]}
"""
FAKE_TORCH = """
from types import SimpleNamespace

cuda = SimpleNamespace(fraction=0, is_available=lambda: True)
cuda.get_device_properties = lambda device: SimpleNamespace(total_memory=64 << 20)
cuda.set_per_process_memory_fraction = lambda fraction: vars(cuda).update(fraction=fraction)
"""


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> PagePool:
    """Return the pool of the emulated device."""

    @cache
    def host_pool(device: int, pages: int) -> PagePool:
        pool = PagePool(HostBacking(device_pages.PAGE_BYTES), pages)
        pool.fill()
        return pool

    monkeypatch.setattr(device_pages, "device_pool", host_pool)
    return host_pool(1, 8)


def a_gpu_user(tmp_path: Path, expected: tuple[str, str, float], keys: str = "") -> Path:
    folder = a_python_model(tmp_path, USER.replace("EXPECTED", repr(expected)))
    (folder / "torch.py").write_text(FAKE_TORCH)
    (folder / "model.toml").write_text(keys + (folder / "model.toml").read_text())
    return folder


def test_a_python_model_gets_the_workers_device_and_takes_the_place_of_pages(
    pool: PagePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    folder = a_gpu_user(tmp_path, ("GPU-b", "0=48M", 0.75), 'gpu_memory = "48MiB"\n')
    runtime = PythonRuntime(CUDA)
    spec = runtime.place(runtime.inspect(folder), folder)
    assert (spec.on_gpu, spec.pages) == (True, 3)
    model = runtime.measured_model().open(spec, folder)
    assert pool.total == 5
    model.close()
    assert not runtime.is_open(spec)  # a process that waits would hold memory
    model = runtime.open(spec, folder)
    assert model.run(2, {"x": np.ones((2, 4), np.float32)})["y"].shape == (2, 4)
    model.close()
    pool.check()
    assert pool.total == 8


def test_a_python_model_without_memory_sees_no_device(pool: PagePool, tmp_path: Path) -> None:
    folder = a_gpu_user(tmp_path, ("", "", 0))
    runtime = PythonRuntime(CUDA)
    spec = runtime.place(runtime.inspect(folder), folder)
    runtime.open(spec, folder).close()
    assert (spec.on_gpu, pool.total) == (False, 8)


def test_a_python_model_that_wants_a_device_is_told_how_to_get_it(tmp_path: Path) -> None:
    folder = a_python_model(tmp_path, "class Model:\n    def __init__(self):\n        raise OSError('No CUDA GPUs')")
    runtime = PythonRuntime()
    with pytest.raises(ModelFailed, match=r"No CUDA GPUs .*gets a GPU by `gpu_memory` in model.toml"):
        runtime.open(runtime.inspect(folder), folder)


def test_a_python_model_that_fails_gives_its_pages_back(pool: PagePool, tmp_path: Path) -> None:
    folder = a_gpu_user(tmp_path, ("another", "", 0), 'gpu_memory = "16MiB"\n')
    runtime = PythonRuntime(CUDA)
    with pytest.raises(ModelFailed):
        runtime.open(runtime.place(runtime.inspect(folder), folder), folder)
    assert pool.total == 8


@pytest.mark.parametrize(("keys", "pages"), [("", 1), ('gpu_memory = "40MiB"\n', 3)])
def test_an_onnx_model_takes_the_place_of_pages(
    keys: str, pages: int, pool: PagePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_runtime, "session_providers", lambda path, content, manifest, device: [providers.CPU])
    bind: Callable[..., object] = onnx_runtime.BoundModel
    monkeypatch.setattr(
        onnx_runtime, "BoundModel", lambda spec, session, kind, device, held: bind(spec, session, "cpu", 0, held)
    )
    folder = an_onnx_model(tmp_path)
    (folder / "model.toml").write_text(keys)
    runtime = onnx_runtime.OnnxRuntime(CUDA)
    spec = runtime.place(runtime.inspect(folder), folder)
    assert (spec.on_gpu, spec.pages) == (True, pages)
    model = runtime.open(spec, folder)
    assert pool.total == 8 - pages
    model.close()
    model.close()
    pool.check()
    assert pool.total == 8


@pytest.mark.parametrize(
    ("name", "device", "reason"),
    [
        ("TensorRT", "cpu", r"got 'TensorRT', and this onnxruntime has .*CPUExecutionProvider"),
        ("TensorrtExecutionProvider", "cpu", r"got 'Tensorrt.*', wanted worker.device = 'cuda' for it, got 'cpu'"),
    ],
)
def test_a_provider_that_the_worker_lacks_is_named(
    name: str, device: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    available = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: available)
    folder = an_onnx_model(tmp_path)
    (folder / "model.toml").write_text(f'providers = ["{name}"]\n')
    runtime = onnx_runtime.OnnxRuntime(WorkerSettings(device=device))
    with pytest.raises(InvalidModel, match=reason):
        runtime.open(runtime.inspect(folder), folder)


def test_providers_get_their_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    available = [providers.TENSORRT, providers.CUDA, providers.OPENVINO, providers.CPU]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: available)
    monkeypatch.setattr(providers, "_stream", lambda device: 7)
    of = partial(providers.session_providers, tmp_path / "model.onnx", "abc")
    manifest = Manifest(gpu_memory="64MiB", threads=3)
    [(cuda, options), cpu] = of(manifest, CUDA)
    assert (cuda, cpu) == (providers.CUDA, providers.CPU)
    assert options.items() >= {("device_id", "1"), ("user_compute_stream", "7"), ("gpu_mem_limit", str(64 << 20))}
    tensorrt = Manifest(providers=(providers.TENSORRT, providers.CUDA))
    [(name, options), *others] = of(tensorrt, msgspec.structs.replace(CUDA, cache="/c"))
    assert (name, options["trt_engine_cache_path"], len(others)) == (providers.TENSORRT, "/c/engines/abc", 2)
    openvino = Manifest(providers=(providers.OPENVINO,), threads=3)
    [(name, options), cpu] = of(openvino, WorkerSettings(cache="/c"))
    assert (name, options["num_of_threads"], cpu) == (providers.OPENVINO, "3", providers.CPU)


def test_a_session_on_another_provider_is_not_served() -> None:
    """Without its libraries, ONNX Runtime opens the session on the CPU, and says so in a warning only."""
    path = Path("model.onnx")
    wanted: list[object] = [(providers.CUDA, {}), providers.CPU]
    providers.check_providers(path, [providers.CUDA, providers.CPU], wanted)
    with pytest.raises(InvalidModel, match=r"model.onnx: got .*CPU.*, wanted CUDA"):
        providers.check_providers(path, [providers.CPU], wanted)
