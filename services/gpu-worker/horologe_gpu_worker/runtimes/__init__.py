"""The runtimes by name. A runtime's module, and so its package, is imported only when a model asks for it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_gpu_worker.runtime import Runtime


def _lazily(module: str, name: str) -> Callable[[], Runtime]:
    def make() -> Runtime:
        return cast("Runtime", getattr(importlib.import_module(f"{__name__}.{module}"), name)())

    return make


RUNTIMES: dict[str, Callable[[], Runtime]] = {
    "onnx": _lazily("onnx", "OnnxRuntime"),
    "python": _lazily("python", "PythonRuntime"),
    "emulated": _lazily("emulated", "EmulatedRuntime"),
}
"""Runtime name (`runtime` in `model.toml`) -> what makes one. Raises ImportError if its package is not installed."""
