"""Registry of runtimes. A runtime's module, and its package, is imported when the first model needs it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_gpu_worker.runtime import Runtime
    from horologe_gpu_worker.settings import WorkerSettings


def _lazy_factory(module: str, name: str) -> Callable[..., Runtime]:
    def create(*settings: WorkerSettings) -> Runtime:
        runtime: Runtime = getattr(importlib.import_module(f"{__name__}.{module}"), name)(*settings)
        return runtime

    return create


RUNTIMES: dict[str, Callable[..., Runtime]] = {
    "onnx": _lazy_factory("onnx.onnx_runtime", "OnnxRuntime"),
    "pytorch": _lazy_factory("pytorch.pytorch_runtime", "PytorchRuntime"),
    "torchscript": _lazy_factory("pytorch.torchscript_runtime", "TorchScriptRuntime"),
    "python": _lazy_factory("python.python_runtime", "PythonRuntime"),
    "emulated": _lazy_factory("emulated", "EmulatedRuntime"),
}
"""Runtime name (`runtime` in `model.toml`) -> factory for the settings of a worker, by default on the CPU. Raises
ImportError if the package is not installed."""
