"""Python runtime: a `predict_batch` class in a process of its own, which isolates crashes, hangs and leaks.

A model whose process has ended runs nothing more. Its worker unloads it, and the controller plans its next LOAD.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.clock import monotonic_ns, ms, s
from horologe_common.models import ModelSpec
from horologe_common.service.log import logger
from horologe_common.service.processes import start_patiently
from horologe_common.status import ModelFailed, Refused, error_for
from horologe_gpu_worker.repository.content import content_bytes
from horologe_gpu_worker.repository.manifest import InvalidModel, model_path, read_manifest, size_bytes
from horologe_gpu_worker.repository.model_signature import check_outputs
from horologe_gpu_worker.repository.model_spec import build_spec, declared_signature
from horologe_gpu_worker.runtime import OpenModel, ProcessFailed, RowsFailed, Runtime, WarmUpFailed
from horologe_gpu_worker.runtimes.kept_models import KeptModels
from horologe_gpu_worker.runtimes.python.channel import END_S, Done, ModelCallFailed, ModelProcess
from horologe_gpu_worker.runtimes.python.model_environment import find_environment, make_environment
from horologe_gpu_worker.runtimes.pytorch.paging.device_pages import HeldPages
from horologe_gpu_worker.settings import DEFAULTS, WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from horologe_gpu_worker.core.stream_step import Step

MODEL = "model.py"
KEPT_MAX, KEPT_LOAD_NS = 4, s(1)
"""Limit of measured models that wait for their first LOAD, and the shortest loading time that is worth the memory of an
idle process."""

log = logger("python")


class PythonModel(OpenModel):
    """A model and its current process. Call `start` first."""

    def __init__(
        self,
        spec: ModelSpec,
        spawn: Callable[[], ModelProcess],
        *,
        warm: bool = True,
        hold_pages: Callable[[], HeldPages | None] = lambda: None,
    ) -> None:
        """`hold_pages`: makes room on the device for the process."""
        self._spec = spec
        self._spawn = spawn
        self._process: ModelProcess | None = None
        """None before `begin`, and after the process has ended."""
        self.kept: KeptModels[PythonModel] | None = None
        """Where `close` keeps the model if it is ready and took long to load. Set before `begin`."""
        self._warm = warm
        self._hold_pages = hold_pages
        self._held: HeldPages | None = None
        self._ready = False

    def start(self) -> None:
        """Start the process and wait until the model is loaded and warm. Raises `ModelFailed` or `WarmUpFailed`."""
        self.begin()
        self.wait_loaded()

    def begin(self) -> None:
        """Start the process. Does not wait for the model. Raises `ModelFailed` if no process can be started."""
        process, self._begin_ns = self._spawn(), monotonic_ns()
        self._held = self._hold_pages()
        try:
            start_patiently(f"model {self._spec.key}", lambda: process.start(warm=self._warm))
        except OSError as error:
            self._put_pages_back()
            raise ModelFailed(f"model {self._spec.key}: process could not be started: {error}") from error
        self._process = process

    def wait_loaded(self) -> None:
        """Wait until the model is loaded and warm. Raises `ModelFailed`, `RowsFailed` or `WarmUpFailed`."""
        process = self._process
        assert process is not None
        try:
            while not self._ready:
                self._ready = process.is_loaded(ms(100))
        except ModelFailed as error:
            self._end(0)
            self._put_pages_back()
            kind = next((kind for kind in (WarmUpFailed, RowsFailed) if isinstance(error, kind)), ModelFailed)
            raise kind(f"model {self._spec.key}: {error.reason}") from error
        self._load_ns = monotonic_ns() - self._begin_ns

    def run_quietly(self, batch_size: int, inputs: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        return self._run(batch_size, inputs, quiet=True)[0]

    def run(self, batch_size: int, inputs: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        return self._run(batch_size, inputs)[0]

    def run_requests(
        self, batch_size: int, inputs: Mapping[str, NDArray[Any]], rows: Sequence[int]
    ) -> tuple[Mapping[str, NDArray[Any]], Mapping[int, str]]:
        return self._run(batch_size, inputs, rows=rows)

    def _run(
        self, batch_size: int, inputs: Mapping[str, NDArray[Any]], *, quiet: bool = False, rows: Sequence[int] = ()
    ) -> tuple[Mapping[str, NDArray[Any]], Mapping[int, str]]:
        done, outputs = self._call(lambda process: process.run(batch_size, inputs, quiet, rows), quiet)
        if not done.failed or len(done.failed) < len(rows):
            check_outputs(self._spec, batch_size, outputs)
        return outputs, {index: f"model {self._spec.key}: {reason}" for index, reason in done.failed.items()}

    def step(self, step: Step, inputs: Mapping[str, NDArray[Any]]) -> tuple[Mapping[str, NDArray[Any]] | None, bool]:
        message, item = self._call(lambda process: process.run(1, inputs, step=step))
        try:
            if item:
                check_outputs(self._spec, 1, item)
        except ModelFailed:
            self.end_streams(step.owner, (step.stream,))
            raise
        return item or None, message.more

    def end_streams(self, owner: str, streams: tuple[int, ...] = ()) -> None:
        if self._process is not None and self._ready:
            self._process.end_streams(owner, streams)

    def _call(
        self,
        call: Callable[[ModelProcess], tuple[Done | ModelCallFailed, dict[str, NDArray[Any]]]],
        quiet: bool = False,
    ) -> tuple[Done, dict[str, NDArray[Any]]]:
        """Return what the process answers.

        Raises `ProcessFailed` if it ends or hangs, `Refused` for all later calls, `ModelFailed`, `Refused` or `Lost`.
        """
        if (process := self._process) is None:
            raise Refused(f"model {self._spec.key}: its process has ended")
        try:
            message, outputs = call(process)
        except ModelFailed as error:
            raise self._end_failed(error, quiet) from error
        if isinstance(message, ModelCallFailed):
            if message.fatal:
                raise self._end_failed(ModelFailed(message.reason), quiet)
            raise error_for(message.status, f"model {self._spec.key}: {message.reason}")
        return message, outputs

    def _end_failed(self, error: ModelFailed, quiet: bool) -> ProcessFailed:
        """End the process after an error that it does not survive. Return the error with its cause, which is also
        logged unless `quiet`.
        """
        cause = error.cause if isinstance(error, ProcessFailed) else "crash"
        if not quiet:
            log.error("model process ended", model=self._spec.key, cause=cause, reason=error.reason)
        self._end(0)
        self._ready = False
        return ProcessFailed(f"model {self._spec.key}: {error.reason}", cause)

    def close(self) -> None:
        """End the process, or keep the model for its next `open`."""
        kept, self.kept = self.kept, None
        self.end_streams("")
        if kept is not None and self._ready and self._load_ns >= KEPT_LOAD_NS and not self._spec.on_gpu:
            kept.set_content(self._spec)
            kept.keep(self._spec, self, 1)
        else:
            self._end(END_S)
            self._put_pages_back()

    def _end(self, grace_s: float) -> None:
        if self._process is not None:
            self._process.stop(grace_s)
            self._process = None

    def _put_pages_back(self) -> None:
        if self._held is not None:
            self._held.put_back()

    def kill(self) -> None:
        """Kill the process. May be called from any thread while another one waits for the process."""
        self.kept = None
        if (process := self._process) is not None:
            process.kill()


class PythonRuntime(Runtime):
    """Models written in Python: `model.py` with a class `Model`, which has `predict_batch` or `predict_stream`."""

    def __init__(self, settings: WorkerSettings = DEFAULTS) -> None:
        self._settings = settings
        self.kept = KeptModels(KEPT_MAX, PythonModel.close)
        self._opened: dict[str, tuple[str, bool]] = {}
        """Model key -> the content that a process has loaded, and whether its next process is warmed up."""

    def provision(self, folder: Path, report: Callable[[str], None]) -> None:
        """Make the environment of the model unless it exists. Raises `InvalidModel` if that fails."""
        make_environment(folder, read_manifest(folder), self._settings, report)

    def inspect(self, folder: Path) -> ModelSpec:
        manifest = read_manifest(folder)
        if not (path := model_path(folder, manifest, MODEL)).is_file():
            raise InvalidModel(f"{path}: got no such file, wanted a class Model")
        return build_spec(folder, manifest, "python", declared_signature(manifest, folder), content_bytes(folder))

    def place(self, spec: ModelSpec, folder: Path) -> ModelSpec:
        """Give the model the worker's CUDA device, and as many pages as its `gpu_memory`, if it has one."""
        limit = size_bytes(read_manifest(folder).gpu_memory)
        if not limit or self._settings.cuda is None:
            return spec
        return msgspec.structs.replace(spec, on_gpu=True, weights_bytes=limit)

    def open(self, spec: ModelSpec, folder: Path, *, warm: bool = True) -> PythonModel:
        """Start a process; see `Runtime.open`.

        Raises `Refused` if a process has loaded this content before: the next one may again. After a failed warm-up it
        has none, because the model may run on real inputs.
        """
        opened, warms = self._opened.get(spec.key, (None, True))
        if opened != spec.content_hash:
            warms = True
        model = self._create(spec, folder, warm and warms)
        try:
            model.start()
        except ModelFailed as error:
            if opened != spec.content_hash:
                raise
            self._opened[spec.key] = opened, warms and not isinstance(error, WarmUpFailed)
            raise Refused(error.reason) from error
        self._opened[spec.key] = spec.content_hash, warms
        return model

    def is_open(self, spec: ModelSpec) -> bool:
        """Return True if `open` returns at once: the process that was measured waits for its first LOAD."""
        return spec in self.kept

    def open_kept(self, spec: ModelSpec) -> OpenModel | None:
        """Return the model that was measured; None if its process is not kept."""
        if (model := self.kept.take(spec)) is not None:
            self._opened[spec.key] = spec.content_hash, True
        return model

    def measured_model(self) -> _MeasuredModel:
        return _MeasuredModel(self.kept, self._create)

    def close(self) -> None:
        self.kept.close()

    def _create(self, spec: ModelSpec, folder: Path, warm: bool) -> PythonModel:
        manifest = read_manifest(folder)
        environment = find_environment(folder, manifest, self._settings)
        return PythonModel(
            spec,
            lambda: ModelProcess(spec, folder, manifest, self._settings, environment),
            warm=warm,
            hold_pages=lambda: HeldPages(self._settings, spec.pages, spec.on_gpu),
        )


class _MeasuredModel(Runtime):
    """Opens one model like its runtime, which is kept when it is closed."""

    def __init__(self, kept: KeptModels[PythonModel], create: Callable[[ModelSpec, Path, bool], PythonModel]) -> None:
        self._kept = kept
        self._create = create
        self._lock = Lock()
        self._model: PythonModel | None = None
        self._stopped = False

    def open(self, spec: ModelSpec, folder: Path, *, warm: bool = True) -> PythonModel:
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
