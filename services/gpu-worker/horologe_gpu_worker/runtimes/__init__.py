"""The runtimes by name. A runtime's module, and so its package, is imported only when a model asks for it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol

from horologe_gpu_worker.runtime import HOST

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_gpu_worker.runtime import Place, Runtime


class Maker(Protocol):
    """Makes a runtime for a place; without one, for the host. Raises ImportError if its package is not installed."""

    def __call__(self, place: Place = HOST) -> Runtime: ...


def _lazily(module: str, name: str, placed: bool = False) -> Maker:
    def make(place: Place = HOST) -> Runtime:
        kind: Callable[..., Runtime] = getattr(importlib.import_module(f"{__name__}.{module}"), name)
        return kind(place) if placed else kind()

    return make


RUNTIMES: dict[str, Maker] = {
    "onnx": _lazily("onnx.onnx_runtime", "OnnxRuntime", placed=True),
    "pytorch": _lazily("pytorch.pytorch_runtime", "PytorchRuntime", placed=True),
    "python": _lazily("python.python_runtime", "PythonRuntime"),
    "emulated": _lazily("emulated", "EmulatedRuntime"),
}
"""Runtime name (`runtime` in `model.toml`) -> what makes one."""
