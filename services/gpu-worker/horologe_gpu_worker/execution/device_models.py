"""Operations of one share: load and unload models, build inputs, run batches, read outputs."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from horologe_common.clock import monotonic_ns
from horologe_common.service.log import logger
from horologe_common.service.processes import is_shortage
from horologe_common.status import HorologeError, Lost, ModelFailed, Refused, Status, describe_exception
from horologe_gpu_worker.core.lanes import Finished, LaneOperation, finish, not_run
from horologe_gpu_worker.execution.batching import (
    assemble_inputs,
    batch_shapes,
    lengthen_rows,
    output_tensors,
    workspace_bytes,
)
from horologe_gpu_worker.execution.workspace import Workspace
from horologe_gpu_worker.runtime import StagedModel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from horologe_common.models import ModelSpec
    from horologe_gpu_worker.repository.modelstore import ModelStore
    from horologe_gpu_worker.runtime import OpenModel, Shapes

log = logger("device")


class _LoadedModel:
    """A model in memory. The lock prevents UNLOAD from closing it during an EXEC."""

    def __init__(self, model: OpenModel, spec: ModelSpec) -> None:
        self.model = model
        self.spec = spec
        self.staging = model if isinstance(model, StagedModel) else None
        self.lock = Lock()
        self.closed = False
        self.typical_ns: dict[int, int] = {}
        """Median execution time by batch size, followed in steps of 1/16."""

    def close(self) -> None:
        """Wait for the running EXEC, and close the model."""
        with self.lock:
            self.closed = True
            self.model.close()

    def observe_exec(self, batch_size: int, took_ns: int) -> None:
        typical_ns = self.typical_ns.get(batch_size, took_ns)
        self.typical_ns[batch_size] = typical_ns * (17 if took_ns > typical_ns else 15) // 16


class _Staged(NamedTuple):
    """Inputs for EXEC or outputs for the OUTPUT lane, and their model. Outputs stay valid if it is unloaded."""

    loaded: _LoadedModel
    data: Any


class DeviceModels:
    """The models of one share. Each method runs on the thread of its lane; `run` never raises.

    `check_device` is called after an operation has failed.
    """

    def __init__(self, store: ModelStore, check_device: Callable[[], None] = lambda: None) -> None:
        self._store = store
        self._check_device = check_device
        self._loaded: dict[str, _LoadedModel] = {}
        self._loading = Lock()
        """Held to change `_loaded`: LOAD and UNLOAD run on one lane, replacements on another."""
        self._space = Workspace()
        self._handlers: dict[str, Callable[[LaneOperation], Finished | None]] = {
            "load": self._load,
            "unload": self._unload,
            "input": self._input,
            "exec": self._exec,
            "output": self._output,
            "replace": self._replace,
            "end": self._end_streams,
        }

    def run(self, operation: LaneOperation) -> Finished:
        """Run the operation. An error becomes a Finished with status FAILED, or REFUSED, and the reason."""
        begin_ns, status = monotonic_ns(), Status.FAILED
        try:
            finished = self._handlers[operation.lane](operation)
            return finished or _succeeded(operation, begin_ns)
        except (Refused, Lost) as error:
            write = log.warning if operation.step is None else log.debug  # of a stream: its client gets the reason
            write("operation refused", lane=operation.lane, model=operation.model, reason=error.reason)
            status, reason, cause = error.status, error.reason, ""
        except HorologeError as error:
            reason, cause = error.reason, getattr(error, "cause", "error")
            if cause == "error" and operation.lane == "exec":  # the others are logged where they are detected
                log.warning("operation failed", lane=operation.lane, model=operation.model, reason=reason)
        except BaseException as error:  # a model may raise anything, even SystemExit, and the lane must continue
            log.exception("operation failed", lane=operation.lane, model=operation.model)
            reason, cause = f"model {operation.model}: {describe_exception(error)}", "error"
        if status == Status.FAILED:
            self._check_device()
        failure = (operation.model, cause) if cause else None
        return finish(operation, status, begin_ns, monotonic_ns(), reason=reason, failure=failure)

    def loads_at_once(self, operation: LaneOperation) -> bool:
        """Return True if this LOAD or UNLOAD neither opens a model nor waits for an EXEC."""
        loaded = self._loaded.get(operation.model)
        if operation.lane == "load":
            return loaded is not None or self._store.is_open(operation.model)
        return operation.lane == "unload" and (loaded is None or not loaded.lock.locked())

    def exec_ns(self, operation: LaneOperation) -> int:
        """Return the probable time of this EXEC: the expected time, or the median of the model's runs if it is smaller.

        The expected time is a high quantile, which other processes on a busy machine increase. It applies to models
        with variable dimensions, whose time depends on the input.
        """
        loaded = self._loaded.get(operation.model)
        if loaded is None or loaded.spec.variable_dimensions:
            return operation.expected_ns
        return min(operation.expected_ns, loaded.typical_ns.get(operation.batch_size, operation.expected_ns))

    def close(self) -> None:
        """Close every model. Call at the end of the process."""
        for model in list(self._loaded):
            self._unload(LaneOperation(0, 0, "unload", model))

    def _load(self, operation: LaneOperation) -> None:
        if operation.model not in self._loaded:
            try:
                loaded = self._open(operation.model)
            except (OSError, RuntimeError) as error:
                if not is_shortage(error):
                    raise
                raise Refused(f"model {operation.model}: {describe_exception(error)}") from error  # it may pass
            with self._loading:
                self._loaded[operation.model] = loaded

    def _open(self, model: str) -> _LoadedModel:
        spec = self._store.spec(model)
        loaded = _LoadedModel(self._store.open(spec), spec)
        self._space.reserve(workspace_bytes(spec))
        return loaded

    def _unload(self, operation: LaneOperation) -> None:
        with self._loading:
            loaded = self._loaded.pop(operation.model, None)
        if loaded:
            loaded.close()

    def _replace(self, operation: LaneOperation) -> None:
        """Open the present content of a loaded model, which serves meanwhile, and close the old one after its EXEC."""
        old = self._loaded.get(operation.model)
        if old is not None and old.spec.content_hash != self._store.spec(operation.model).content_hash:
            unused = self._open(operation.model)
            with self._loading:
                if self._loaded.get(operation.model) is old:
                    self._loaded[operation.model], unused = unused, old
            unused.close()

    def _end_streams(self, operation: LaneOperation) -> None:
        """Drop the state of streams, after the running EXEC of their model."""
        for model, loaded in list(self._loaded.items()):
            if loaded.spec.streams and operation.model in ("", model):
                with loaded.lock:
                    if not loaded.closed:
                        loaded.model.end_streams(operation.owner, operation.streams)

    def _exec(self, operation: LaneOperation) -> Finished:
        loaded = self._loaded.get(operation.model)
        if loaded is None:
            return _not_loaded(operation)
        if operation.staged is None:
            checked = operation.spec  # another content than the loaded one, if the model is being replaced
            if checked is not loaded.spec and checked is not None and not loaded.spec.is_compatible(checked):
                return _not_loaded(operation)
            staged, inputs = None, assemble_inputs(operation, loaded.spec.batched, self._space)
        elif operation.staged.loaded is loaded:
            inputs = staged = operation.staged.data
        else:
            return _not_loaded(operation)
        with loaded.lock:
            if loaded.closed:  # replaced or unloaded meanwhile
                return self._exec(operation)
            begin_ns = monotonic_ns()
            if begin_ns > operation.latest_ns:
                return not_run(operation, Status.TOO_LATE, begin_ns, "the window closed while the inputs were prepared")
            if staged is not None and loaded.staging:
                loaded.staging.execute(operation.batch_size, staged)
                return _succeeded(operation, begin_ns, staged=_Staged(loaded, staged), device_ns=staged.device_ns)
            outputs, more, failed = _run(loaded, operation, inputs)
            end_ns = monotonic_ns()
        loaded.observe_exec(operation.batch_size, end_ns - begin_ns)
        if staged is not None:
            return _succeeded(operation, begin_ns, end_ns, staged=_Staged(loaded, outputs), failed=failed)
        tensors = [] if outputs is None else output_tensors(operation, loaded.spec, outputs, self._space)
        content_hash = loaded.spec.content_hash
        return _succeeded(
            operation, begin_ns, end_ns, outputs=tensors, content_hash=content_hash, more=more, failed=failed
        )

    def _input(self, operation: LaneOperation) -> Finished:
        begin_ns = monotonic_ns()
        loaded = self._loaded.get(operation.model)
        if loaded is None:
            return _not_loaded(operation)
        if loaded.staging:
            operation, shapes = _bucketed(loaded, operation)
            slot = loaded.staging.slot(shapes)
            loaded.staging.stage(slot, assemble_inputs(operation, loaded.spec.batched, slot.space, copy_all=True))
            return _succeeded(operation, begin_ns, staged=_Staged(loaded, slot))
        inputs = assemble_inputs(operation, loaded.spec.batched, Workspace())  # not `_space`: EXEC may be using it
        loaded.model.copy_in(operation.rows)
        return _succeeded(operation, begin_ns, staged=_Staged(loaded, inputs))

    def _output(self, operation: LaneOperation) -> Finished:
        begin_ns = monotonic_ns()
        loaded, outputs = operation.staged
        if loaded.staging:
            outputs = loaded.staging.fetch(operation.batch_size, outputs)
        else:
            loaded.model.copy_out(operation.rows)
        tensors = output_tensors(operation, loaded.spec, outputs, self._space)
        return _succeeded(operation, begin_ns, outputs=tensors, content_hash=loaded.spec.content_hash)


def _run(
    loaded: _LoadedModel, operation: LaneOperation, inputs: Mapping[str, NDArray[Any]]
) -> tuple[Mapping[str, NDArray[Any]] | None, bool, tuple[tuple[int, str], ...]]:
    """Run a batch, or a step of a stream.

    Return its outputs, whether more items may follow, and why single requests failed.
    """
    if operation.step is not None:
        return *loaded.model.step(operation.step, inputs), ()
    if loaded.spec.streams:
        raise ModelFailed(f"model {loaded.spec.key}: streams its outputs, and was asked for one answer")
    outputs, failed = loaded.model.run_requests(operation.batch_size, inputs, operation.request_rows)
    has_outputs = not failed or len(failed) < len(operation.request_rows)
    return outputs if has_outputs else None, False, tuple(failed.items())


def _bucketed(loaded: _LoadedModel, operation: LaneOperation) -> tuple[LaneOperation, Shapes]:
    """Return the operation with its inputs padded as the model wants them, and the shapes of the batch."""
    spec, staging = loaded.spec, loaded.staging
    shapes = batch_shapes(operation, spec)
    if staging is None or not (spec.padded and spec.variable_dimensions):
        return operation, shapes
    longer = staging.bucket(shapes)
    return (operation, shapes) if longer == shapes else (lengthen_rows(operation, spec, longer), longer)


def _not_loaded(operation: LaneOperation) -> Finished:
    """Return Finished with status REFUSED: the controller may run the action elsewhere, or after the model's LOAD."""
    return not_run(operation, Status.REFUSED, monotonic_ns(), f"model {operation.model}: is not loaded")


def _succeeded(operation: LaneOperation, begin_ns: int, end_ns: int = 0, **result: Any) -> Finished:
    """Return the Finished message of a success. `end_ns` 0: now."""
    return finish(operation, Status.OK, begin_ns, end_ns or monotonic_ns(), **result)
