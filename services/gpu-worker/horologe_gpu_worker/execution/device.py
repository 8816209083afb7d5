"""What the operations of one share do: weights in and out of memory, inputs to arrays, a run, outputs to bytes."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from horologe_common.clock import monotonic_ns
from horologe_common.service.log import logger
from horologe_common.status import HorologeError, Status
from horologe_gpu_worker.core.lanes import Finished, Operation, not_run
from horologe_gpu_worker.execution.batching import assemble, results, workspace_bytes
from horologe_gpu_worker.execution.io_cache import Workspace
from horologe_gpu_worker.runtime import Staging

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.models import ModelSpec
    from horologe_common.wire import ModelReport
    from horologe_gpu_worker.runtime import OpenModel

log = logger("device")


class Store(Protocol):
    """The part of the model store that lanes use (modelstore.py)."""

    def scan(self) -> list[ModelReport]: ...

    def scan_one(self, name: str) -> list[ModelReport]: ...

    def open(self, key: str) -> OpenModel: ...

    def spec(self, key: str) -> ModelSpec: ...

    def inline_io(self, key: str) -> bool: ...


@runtime_checkable
class Transfers(Protocol):
    """A model whose inputs and outputs are copied by lanes of their own."""

    def copy_in(self, rows: int) -> None: ...

    def copy_out(self, rows: int) -> None: ...


class _Loaded:
    """A model in memory. The lock keeps UNLOAD from closing it under a running EXEC."""

    __slots__ = ("closed", "lock", "model", "spec", "staging")

    def __init__(self, model: OpenModel, spec: ModelSpec) -> None:
        self.model = model
        self.spec = spec
        self.staging = model if isinstance(model, Staging) else None
        self.lock = Lock()
        self.closed = False


class _Ran(NamedTuple):
    """What EXEC leaves for OUTPUT, which an UNLOAD in between does not concern."""

    loaded: _Loaded
    outputs: Any


class Device:
    """One share. Each method runs on the thread of its lane; an exception of a model never leaves `run`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loaded: dict[str, _Loaded] = {}
        self._space = Workspace()
        self._do: dict[str, Callable[[Operation], Finished]] = {
            "load": self._load,
            "unload": self._unload,
            "input": self._input,
            "exec": self._exec,
            "output": self._output,
            "scan": self._scan,
        }

    def run(self, operation: Operation) -> Finished:
        """Carry the operation out. What goes wrong is a Finished with status FAILED and the reason."""
        begin_ns = monotonic_ns()
        try:
            return self._do[operation.lane](operation)
        except HorologeError as error:
            reason = error.reason
        except BaseException as error:  # a model may raise anything, SystemExit included: its lane has to go on
            log.exception("operation failed", lane=operation.lane, model=operation.model)
            reason = f"model {operation.model}: {type(error).__name__}: {error}"
        return _finished(operation, begin_ns, status=Status.FAILED, reason=reason)

    def close(self) -> None:
        """Close every model, at the end of the process."""
        for model in list(self._loaded):
            self._unload(Operation(0, 0, "unload", model))

    def _load(self, operation: Operation) -> Finished:
        begin_ns = monotonic_ns()
        if operation.model not in self._loaded:
            model, spec = self._store.open(operation.model), self._store.spec(operation.model)
            self._space.reserve(workspace_bytes(spec))
            self._loaded[operation.model] = _Loaded(model, spec)
        return _finished(operation, begin_ns)

    def _unload(self, operation: Operation) -> Finished:
        begin_ns = monotonic_ns()
        if loaded := self._loaded.pop(operation.model, None):
            with loaded.lock:
                loaded.closed = True
                loaded.model.close()
        return _finished(operation, begin_ns)

    def _exec(self, operation: Operation) -> Finished:
        loaded = self._loaded.get(operation.model)
        if loaded is None:
            return _not_loaded(operation)
        staged = operation.staged
        inputs = assemble(operation, loaded.spec.batched, self._space) if staged is None else staged
        with loaded.lock:
            if loaded.closed:
                return _not_loaded(operation)
            begin_ns = monotonic_ns()
            if begin_ns > operation.latest_ns:
                return not_run(operation, Status.TOO_LATE, begin_ns, "the window closed while its inputs were prepared")
            if staged is not None and loaded.staging:
                loaded.staging.execute(operation.batch_size, staged)
                return _finished(operation, begin_ns, staged=_Ran(loaded, staged), device_ns=staged.device_ns)
            outputs = loaded.model.run(operation.batch_size, inputs)
            end_ns = monotonic_ns()
        if staged is not None:
            return _finished(operation, begin_ns, end_ns, staged=_Ran(loaded, outputs))
        found = results(operation, loaded.spec, outputs, self._space)
        return _finished(operation, begin_ns, end_ns, outputs=found)

    def _input(self, operation: Operation) -> Finished:
        begin_ns = monotonic_ns()
        loaded = self._loaded.get(operation.model)
        if loaded is None:
            return _not_loaded(operation)
        if loaded.staging:
            slot = loaded.staging.slot(operation.batch_size)
            loaded.staging.stage(slot, assemble(operation, loaded.spec.batched, slot.space, moved=True))
            return _finished(operation, begin_ns, staged=slot)
        inputs = assemble(operation, loaded.spec.batched, Workspace())  # its own: EXEC may be running the batch before
        if isinstance(loaded.model, Transfers):
            loaded.model.copy_in(operation.rows)
        return _finished(operation, begin_ns, staged=inputs)

    def _output(self, operation: Operation) -> Finished:
        begin_ns = monotonic_ns()
        loaded, outputs = operation.staged
        if loaded.staging:
            outputs = loaded.staging.fetch(operation.batch_size, outputs)
        elif isinstance(loaded.model, Transfers):
            loaded.model.copy_out(operation.rows)
        return _finished(operation, begin_ns, outputs=results(operation, loaded.spec, outputs, self._space))

    def _scan(self, operation: Operation) -> Finished:
        begin_ns = monotonic_ns()
        name = operation.model.partition("/")[0]
        found = self._store.scan_one(name) if name else self._store.scan()
        return _finished(operation, begin_ns, models=found)


def _not_loaded(operation: Operation) -> Finished:
    """Not the model's failure: the controller may plan it elsewhere, or after the LOAD it comes too early for."""
    return not_run(operation, Status.REFUSED, monotonic_ns(), f"model {operation.model}: is not loaded")


def _finished(
    operation: Operation,
    begin_ns: int,
    end_ns: int = 0,
    *,
    status: Status = Status.OK,
    outputs: Sequence[Any] = (),
    reason: str = "",
    staged: Any = None,
    models: Sequence[ModelReport] = (),
    device_ns: int = 0,
) -> Finished:
    """`device_ns`: as the device itself timed it; 0: it is the time between begin and end."""
    end_ns = end_ns or monotonic_ns()
    return Finished(
        operation.action_id,
        operation.lane,
        status,
        begin_ns,
        end_ns,
        device_ns or end_ns - begin_ns,
        outputs,
        reason,
        staged,
        models,
    )
