"""Python models that are measured: their processes can be stopped from outside, and are kept for the first LOAD."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

from horologe_common.clock import monotonic_ns, s
from horologe_common.status import ModelFailed
from horologe_gpu_worker.runtime import ProcessFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from horologe_common.models import ModelSpec
    from horologe_gpu_worker.runtimes.python.python_runtime import PythonModel, PythonRuntime


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
        """Add a model, and close those that are too many or have an earlier content of it."""
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


class ModelRunner:
    """Opens and runs one model like its runtime. `stop` may be called from any thread."""

    inline_io = True

    def __init__(self, runtime: PythonRuntime, create: Callable[[ModelSpec, Path, bool], PythonModel]) -> None:
        self.inspect = runtime.inspect
        self._kept = runtime.kept
        self._create = create
        self._lock = Lock()
        self._model: PythonModel | None = None
        self._stopped = self._failed = False

    def open(self, spec: ModelSpec, folder: Path, *, warm: bool = True) -> ModelRunner:
        """Start the model's process; see `Runtime.open`."""
        with self._lock:
            if self._stopped:
                raise ModelFailed(f"model {spec.key}: was stopped before it was loaded")
            self._model, self._failed = self._create(spec, folder, warm), False
            self._model.begin()
        begin_ns = monotonic_ns()
        self._spec = spec
        self._model.wait_loaded()
        self._worth_keeping = monotonic_ns() - begin_ns >= self._kept.load_ns and bool(spec.content_hash)
        return self

    def run(self, batch_size: int, inputs: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """Run one batch; see `OpenModel.run`."""
        assert self._model is not None
        try:
            return self._model.run(batch_size, inputs)
        except ModelFailed:
            self._failed = True
            raise

    def run_quietly(self, batch_size: int, inputs: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """Run one batch on made-up inputs; see `RunsQuietly`. A model may reject them."""
        assert self._model is not None
        try:
            return self._model.run_quietly(batch_size, inputs)
        except ProcessFailed:
            self._failed = True
            raise

    def close(self) -> None:
        """Keep the model for its first LOAD, or end its process."""
        assert self._model is not None
        if self._worth_keeping and not (self._failed or self._stopped):
            self._kept.keep(self._spec, self._model)
        else:
            self._model.close()

    def stop(self) -> None:
        """Kill the process, or do not start it: `open` or `run` raises `ModelFailed`."""
        with self._lock:
            self._stopped = True
            if self._model is not None:
                self._model.kill()
