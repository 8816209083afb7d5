"""Process of a Python model: `python -m horologe_gpu_worker.runtimes.python.child SOCKET LIFELINE`.

Both arguments are inherited file descriptors. Standard output and error go to the worker's log.
"""

from __future__ import annotations

import contextlib
import importlib.util
import resource
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horologe_common.service.isolation import kill_with_parent
from horologe_common.status import HorologeError, ModelFailed, describe_exception
from horologe_common.string_tensors import as_array
from horologe_gpu_worker.repository.content import ContentHashes
from horologe_gpu_worker.repository.manifest import warmup_inputs
from horologe_gpu_worker.repository.model_signature import describe_mismatch, has_other_rows
from horologe_gpu_worker.runtime import RowsFailed
from horologe_gpu_worker.runtimes.python.channel import Channel, Done, Failed, Ready, Run, Start, pack

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from horologe_common.core.protocol import Buffer

MODULE = "horologe_model"


def main(arguments: list[str]) -> int:
    sock, lifeline = int(arguments[0]), int(arguments[1])
    kill_with_parent(lifeline)
    channel = Channel(socket.socket(fileno=sock))
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        serve(channel)
    return 0


def serve(channel: Channel) -> None:
    """Load the model, send Ready, and run batches until the worker closes the socket."""
    start = channel.receive()[0]
    assert isinstance(start, Start)
    time.sleep(start.delay_ns / 1e9)
    if start.memory_limit_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (start.memory_limit_bytes, start.memory_limit_bytes))
    folder, contents = Path(start.folder), ContentHashes()
    try:
        if start.check_content:
            contents.check_unchanged(start.spec, folder)
        model = load_model(folder)
        slowest_ns = warm_up(model, start)
        if start.check_content:
            contents.check_unchanged(start.spec, folder)
    except Exception as error:
        channel.send(_failed(error, fatal=True))
        return
    channel.send(Ready(slowest_ns))
    while True:
        message, inputs = channel.receive()
        assert isinstance(message, Run)
        channel.send(*run_batch(model, inputs, message.quiet))


def load_model(folder: Path) -> Any:
    """Return an instance of the class `Model` in `folder`/model.py, which may import modules of its folder."""
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True  # the folder may be read-only, and its content hash is the key of its profile
    path = folder / "model.py"
    spec = importlib.util.spec_from_file_location(MODULE, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    spec.loader.exec_module(module)
    if not hasattr(module, "Model"):
        raise ModelFailed("model.py: got no class Model, wanted one with predict_batch(self, inputs)")
    model = module.Model()
    if not callable(getattr(model, "predict_batch", None)):
        raise ModelFailed("model.py: Model: got no method predict_batch, wanted predict_batch(self, inputs)")
    return model


def warm_up(model: Any, start: Start) -> int:
    """Run every batch size and return the longest time in ns. Raises the model's errors."""
    slowest_ns = 0
    for batch_size in start.spec.batch_sizes:
        begin_ns = time.monotonic_ns()
        outputs = _predict_larger(model, start, batch_size)
        slowest_ns = max(slowest_ns, time.monotonic_ns() - begin_ns)
        if fault := describe_mismatch(start.spec, batch_size, outputs):
            raise (RowsFailed if has_other_rows(start.spec, batch_size, outputs) else ModelFailed)(fault)
    return slowest_ns


def _predict_larger(model: Any, start: Start, batch_size: int) -> dict[str, NDArray[Any]]:
    """Run a batch of the warm-up. Raises `RowsFailed` if it is not the smallest and fails."""
    inputs = warmup_inputs(start.spec, Path(start.folder), batch_size)
    try:
        return predict(model, inputs)
    except MemoryError:
        raise
    except Exception as error:
        if batch_size == start.spec.batch_sizes[0]:
            raise
        raise RowsFailed(f"{_describe(error)} (in a batch of {batch_size})") from error


def predict(model: Any, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    outputs = model.predict_batch(inputs)
    if not isinstance(outputs, dict):
        raise ModelFailed(f"predict_batch: got {type(outputs).__name__}, wanted a dict of output name to array")
    return {str(name): as_array(value) for name, value in outputs.items()}


def run_batch(model: Any, inputs: dict[str, NDArray[Any]], quiet: bool) -> tuple[Done | Failed, list[Buffer]]:
    try:
        headers, buffers = pack(predict(model, inputs), "output")
    except MemoryError as error:  # a memory leak would continue
        return _failed(error, fatal=True), []
    except Exception as error:
        return _failed(error, fatal=False, quiet=quiet), []
    return Done(headers), buffers


def _failed(error: Exception, fatal: bool, quiet: bool = False) -> Failed:
    if not quiet:
        with contextlib.suppress(Exception):  # the model may have closed or replaced its standard error
            traceback.print_exception(error)
    return Failed(_describe(error)[:2000], fatal, rows=isinstance(error, RowsFailed))


def _describe(error: Exception) -> str:
    return error.reason if isinstance(error, HorologeError) else describe_exception(error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
