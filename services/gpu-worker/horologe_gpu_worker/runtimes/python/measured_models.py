"""Python models that are measured: their processes can be stopped from outside, and are kept for the first LOAD."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from horologe_common.clock import s
from horologe_common.status import ModelFailed
from horologe_gpu_worker.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from horologe_common.models import ModelSpec
    from horologe_gpu_worker.runtimes.python.python_runtime import PythonModel


class KeptModels:
    """Measured models by key, with their specs. Those that were measured first are closed first.

    `limit`: of processes that are kept. `load_ns`: shortest loading time that is worth the memory of an idle process.
    """

    def __init__(self, limit: int = 4, load_ns: int = s(1)) -> None:
        self._limit = limit
        self.load_ns = load_ns
        self._models: dict[str, tuple[ModelSpec, PythonModel]] = {}
        self._lock = Lock()

    def __contains__(self, spec: ModelSpec) -> bool:
        kept = self._models.get(spec.key)
        return kept is not None and kept[0] == spec

    def keep(self, spec: ModelSpec, model: PythonModel) -> None:
        """Add a loaded model, and close those that are too many or have an earlier content of it."""
        model.kept = None
        with self._lock:
            surplus = [self._models.pop(spec.key)] if spec.key in self._models else []
            self._models[spec.key] = spec, model
            while len(self._models) > self._limit:
                surplus.append(self._models.pop(next(iter(self._models))))
        for _, closed in surplus:
            closed.close()

    def take(self, spec: ModelSpec) -> PythonModel | None:
        """Remove and return the model; None if this content of it is not kept."""
        with self._lock:
            return self._models.pop(spec.key)[1] if spec in self else None

    def close(self) -> None:
        """Close all kept models."""
        with self._lock:
            models, self._models = self._models, {}
        for _, model in models.values():
            model.close()


class ModelRunner(Runtime):
    """Opens one model like its runtime, which is kept when it is closed."""

    def __init__(self, kept: KeptModels, create: Callable[[ModelSpec, Path, bool], PythonModel]) -> None:
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
