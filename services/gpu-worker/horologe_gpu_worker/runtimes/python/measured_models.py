"""A Python model that is measured: its process can be stopped from outside, and is kept for the first LOAD."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from horologe_common.status import ModelFailed
from horologe_gpu_worker.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from horologe_common.models import ModelSpec
    from horologe_gpu_worker.runtimes.kept_models import KeptModels
    from horologe_gpu_worker.runtimes.python.python_runtime import PythonModel


class ModelRunner(Runtime):
    """Opens one model like its runtime, which is kept when it is closed."""

    def __init__(self, kept: KeptModels[PythonModel], create: Callable[[ModelSpec, Path, bool], PythonModel]) -> None:
        self._kept = kept
        self._create = create
        self._lock = Lock()
        self._model: PythonModel | None = None
        self._stopped = False

    def open(self, spec: ModelSpec, folder: Path, *, warm: bool = True) -> PythonModel:
        """Start the model's process; see `Runtime.open`."""
        with self._lock:
            if self._stopped:
                raise ModelFailed(f"model {spec.key}: was stopped before it was loaded")
            model = self._model = self._create(spec, folder, warm)
            model.kept = self._kept
            model.begin()
        model.wait_loaded()
        return model

    def stop(self) -> None:
        """Kill the process, or do not start it: `open` or the model's `run` raises `ModelFailed`."""
        with self._lock:
            self._stopped = True
            if self._model is not None:
                self._model.kill()
