"""Registry of runtimes. A runtime's module, and its package, is imported when the first model needs it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from horologe_gpu_worker.runtime import HOST_DEVICE

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_gpu_worker.runtime import DeviceConfig, Runtime


def _lazy_factory(module: str, name: str) -> Callable[..., Runtime]:
    def create(device: DeviceConfig = HOST_DEVICE) -> Runtime:
        runtime_class: Callable[[DeviceConfig], Runtime] = getattr(
            importlib.import_module(f"{__name__}.{module}"), name
        )
        return runtime_class(device)

    return create


RUNTIMES: dict[str, Callable[..., Runtime]] = {
    "onnx": _lazy_factory("onnx.onnx_runtime", "OnnxRuntime"),
    "pytorch": _lazy_factory("pytorch.pytorch_runtime", "PytorchRuntime"),
    "torchscript": _lazy_factory("pytorch.torchscript_runtime", "TorchScriptRuntime"),
    "python": _lazy_factory("python.python_runtime", "PythonRuntime"),
    "emulated": _lazy_factory("emulated", "EmulatedRuntime"),
}
"""Runtime name (`runtime` in `model.toml`) -> factory for a device, by default the CPU. Raises ImportError if the
package is not installed."""
