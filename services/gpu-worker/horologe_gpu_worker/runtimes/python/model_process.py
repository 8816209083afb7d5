"""Process of a Python model: `python -m horologe_gpu_worker.runtimes.python.model_process SOCKET LIFELINE`.

Both arguments are inherited file descriptors. Standard output and error go to the worker's log.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horologe_common.service.parent_link import PacketSocket, connect_to_parent
from horologe_common.service.standard_streams import install_lossy_streams
from horologe_common.status import HorologeError, Lost, ModelFailed, Refused, describe_exception
from horologe_common.string_tensors import as_array
from horologe_gpu_worker.core.stream_step import Step
from horologe_gpu_worker.repository.manifest import model_path, read_manifest
from horologe_gpu_worker.repository.reshaping import read_reshapes
from horologe_gpu_worker.repository.warm_up import warm_up
from horologe_gpu_worker.runtime import RowsFailed, WarmUpFailed
from horologe_gpu_worker.runtimes.open_streams import OpenStreams
from horologe_gpu_worker.runtimes.python.channel import (
    CloseStreams,
    Done,
    Loaded,
    ModelCallFailed,
    ModelStarted,
    Run,
    Start,
    pack,
    receive,
    send,
)
from horologe_gpu_worker.runtimes.python.model_imports import ModelImports
from horologe_gpu_worker.runtimes.python.triton_model import CLASS as TRITON_CLASS
from horologe_gpu_worker.runtimes.python.triton_model import TritonModel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec

MODULE = "horologe_model"
"""Name of the model's module, also in the processes that the model starts."""
IMPORTABLE = Path(__file__).with_name("importable")


def main(arguments: list[str]) -> int:
    packets, process = connect_to_parent(*arguments), os.getpid()
    os.register_at_fork(after_in_child=packets.close)
    try:
        with contextlib.suppress(EOFError, OSError):
            serve(packets)
    finally:
        if os.getpid() != process:  # the model has forked, and the child has returned from the call
            os._exit(1)
    return 0


def serve(packets: PacketSocket) -> None:
    """Load the model, send ModelStarted, and run batches until the worker closes the socket."""
    start = receive(packets)[0]
    assert isinstance(start, Start)
    if start.memory_limit_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (start.memory_limit_bytes, start.memory_limit_bytes))
    folder = Path(start.folder)
    try:
        model = load_model(folder, start.spec, start.device, start.gpu_memory_bytes)
    except Exception as error:
        send(packets, _failed(error, fatal=True))
        return
    send(packets, Loaded())
    try:
        slowest_ns = run_warm_up(model, start) if start.warm else 0
    except Exception as error:
        send(packets, _failed(error, fatal=True))
        return
    send(packets, ModelStarted(slowest_ns))
    stream = read_manifest(folder).stream
    streams = OpenStreams(getattr(model, "predict_stream", None) or _no_streams, stream.max_open if stream else 0)
    while True:
        message, inputs = receive(packets)
        if isinstance(message, CloseStreams):
            end_streams(streams, message)
        else:
            assert isinstance(message, Run)
            run = partial(run_step, streams, message.step) if message.step else partial(run_batch, model, message)
            send(packets, *answer(run, inputs, message.quiet))


def load_model(folder: Path, spec: ModelSpec, device: str, gpu_memory_bytes: int = 0) -> Any:
    """Return an instance of the class `Model` in the model's file, which may import modules of its folder. A class
    `TritonPythonModel` is adapted.

    Processes that the model starts inherit `sys.path` (by multiprocessing and joblib) and the environment.
    """
    manifest, imports = read_manifest(folder), ModelImports(folder)
    path = model_path(folder, manifest, "model.py")
    imports.install()
    sys.path.insert(1, str(IMPORTABLE))
    os.environ |= {"HOROLOGE_MODEL_FILE": str(path), "PYTHONDONTWRITEBYTECODE": "1"}
    module = importlib.import_module(MODULE)
    limit_gpu_memory(gpu_memory_bytes)
    if hasattr(module, TRITON_CLASS) and not hasattr(module, "Model"):
        adapted = TritonModel(getattr(module, TRITON_CLASS), spec, folder, device)
        imports.check_modules()
        return adapted
    if any(read_reshapes(manifest)):
        raise ModelFailed(f"reshape: got some, wanted none for a class other than {TRITON_CLASS}")
    if not hasattr(module, "Model"):
        raise ModelFailed("model.py: got no class Model, wanted one with predict_batch(self, inputs)")
    model = module.Model()
    limit_gpu_memory(gpu_memory_bytes)
    imports.check_modules()
    method = "predict_stream" if spec.streams else "predict_batch"
    if not callable(getattr(model, method, None)):
        raise ModelFailed(f"model.py: Model: got no method {method}, wanted {method}(self, inputs)")
    return model


def limit_gpu_memory(limit_bytes: int) -> None:
    """Limit what PyTorch allocates on the device, if the model has imported it. 0: no limit."""
    torch: Any = sys.modules.get("torch")
    if limit_bytes and torch is not None and torch.cuda.is_available():
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / total))


def run_warm_up(model: Any, start: Start) -> int:
    """Run every batch size and return the longest time in ns; see repository/warm_up.py."""
    slowest_ns = 0
    streams = OpenStreams(model.predict_stream, 1) if start.spec.streams else None

    def run(batch_size: int, inputs: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        nonlocal slowest_ns
        begin_ns = time.monotonic_ns()
        try:
            outputs = predict(model, inputs) if streams is None else warm_up_stream(streams, inputs)
        except MemoryError:
            raise
        except Exception as error:
            raise ModelFailed(describe_failure(error)) from error
        slowest_ns = max(slowest_ns, time.monotonic_ns() - begin_ns)
        return outputs

    warm_up(run, start.spec, Path(start.folder))
    return slowest_ns


def predict(model: Any, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return as_outputs("predict_batch", model.predict_batch(inputs))


def as_outputs(method: str, outputs: Any) -> dict[str, NDArray[Any]]:
    if not isinstance(outputs, dict):
        raise ModelFailed(f"{method}: got {type(outputs).__name__}, wanted a dict of output name to array")
    return {str(name): as_array(value) for name, value in outputs.items()}


def warm_up_stream(streams: OpenStreams, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Run the first two steps of a stream, and return its first item; empty if it has none for these inputs."""
    item, more = streams.step(Step("", 0, 1), inputs)
    if more:
        second, _ = streams.step(Step("", 0, 2), {})
        item = second if item is None else item
    streams.end("")
    return {} if item is None else as_outputs("predict_stream", item)


def run_batch(model: Any, run: Run, inputs: dict[str, NDArray[Any]]) -> tuple[Done, list[Buffer]]:
    if isinstance(model, TritonModel) and run.rows:
        outputs, failed = model.predict_requests(inputs, run.rows, run.batch_size)
    else:
        outputs, failed = model.predict_batch(inputs), {}
    headers, buffers = pack(as_outputs("predict_batch", outputs), "output")
    return Done(headers, failed=failed), buffers


def run_step(streams: OpenStreams, step: Step, inputs: dict[str, NDArray[Any]]) -> tuple[Done, list[Buffer]]:
    """Run one step. A stream whose item cannot be sent is closed."""
    item, more = streams.step(step, inputs)
    try:
        headers, buffers = pack(as_outputs("predict_stream", {} if item is None else item), "output")
    except BaseException:
        streams.end(step.owner, (step.stream,))
        raise
    return Done(headers, more), buffers


def answer(
    run: Callable[[dict[str, NDArray[Any]]], tuple[Done, list[Buffer]]], inputs: dict[str, NDArray[Any]], quiet: bool
) -> tuple[Done | ModelCallFailed, list[Buffer]]:
    """Return the result of a call of the model, or its failure."""
    try:
        return run(inputs)
    except MemoryError as error:  # a memory leak would continue
        return _failed(error, fatal=True), []
    except (Refused, Lost) as error:
        return ModelCallFailed(error.reason, status=int(error.status)), []
    except Exception as error:
        return _failed(error, fatal=False, quiet=quiet), []


def end_streams(streams: OpenStreams, message: CloseStreams) -> None:
    """Close streams. An exception of a `finally` of the model is only logged: its stream has ended."""
    try:
        streams.end(message.owner, message.streams)
    except Exception as error:
        _failed(error, fatal=False)


def _no_streams(inputs: object) -> None:
    raise ModelFailed("the model does not stream")


def _failed(error: Exception, fatal: bool, quiet: bool = False) -> ModelCallFailed:
    if not quiet:
        with contextlib.suppress(Exception):  # the model may have closed or replaced its standard error
            traceback.print_exception(error)
    by_inputs, rows = isinstance(error, WarmUpFailed), isinstance(error, RowsFailed)
    return ModelCallFailed(describe_failure(error)[:2000], fatal, by_inputs, rows)


def describe_failure(error: Exception) -> str:
    return error.reason if isinstance(error, HorologeError) else describe_exception(error)


def hide_main() -> None:
    """Keep the processes that the model starts from importing this program: multiprocessing would run `__main__`."""
    program = sys.modules["__main__"]
    program.__spec__ = program.__file__ = None


if __name__ == "__main__":
    install_lossy_streams()
    hide_main()
    sys.exit(main(sys.argv[1:]))
