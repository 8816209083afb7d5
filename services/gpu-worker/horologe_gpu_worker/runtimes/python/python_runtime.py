"""Python runtime: a `predict_batch` class in a process of its own, which isolates crashes, hangs and leaks.

A process that died is restarted in the background after a growing delay. Calls fail until it is ready, because a lane
that waited for it would delay every other model.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from horologe_common.clock import monotonic_ns, ms, s
from horologe_common.models import ModelSpec
from horologe_common.service.log import logger
from horologe_common.service.parent_link import PacketSocket
from horologe_common.service.processes import Backoff, child_environment, start_isolated, start_patiently
from horologe_common.status import ModelFailed
from horologe_gpu_worker.repository.content import content_bytes
from horologe_gpu_worker.repository.manifest import (
    InvalidModel,
    Manifest,
    build_spec,
    declared_signature,
    duration_ns,
    read_manifest,
    size_bytes,
)
from horologe_gpu_worker.repository.model_signature import check_outputs
from horologe_gpu_worker.runtime import HOST_DEVICE, OpenModel, ProcessFailed, RowsFailed, Runtime, WarmUpFailed
from horologe_gpu_worker.runtimes.kept_models import KeptModels
from horologe_gpu_worker.runtimes.python.channel import (
    CallFailed,
    ChannelMessage,
    Done,
    Loaded,
    ModelStarted,
    Run,
    Start,
    pack,
    receive,
    send,
)
from horologe_gpu_worker.runtimes.python.measured_models import ModelRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from horologe_gpu_worker.runtime import DeviceConfig

MODEL = "model.py"
CHILD = "horologe_gpu_worker.runtimes.python.model_process"
HANG_FACTOR, HANG_MIN_NS, HANG_MAX_NS = 10, s(1), s(30)
"""Without `timeout`, a call is hung after 10 times the slowest warm-up run, within these bounds. Without a warm-up, a
call is hung after `HANG_MAX_NS`."""
KEPT_MAX, KEPT_LOAD_NS = 4, s(1)
"""Limit of measured models that wait for their first LOAD, and the shortest loading time that is worth the memory of an
idle process."""
END_S = 0.5
"""Seconds that a model has to exit by itself (its `atexit`) when it is unloaded."""

log = logger("python")


class ModelProcess:
    """A child process. Call `start` first."""

    def __init__(self, spec: ModelSpec, folder: Path, manifest: Manifest, device: DeviceConfig = HOST_DEVICE) -> None:
        self._spec = spec
        self._folder = folder
        self._manifest = manifest
        self._device = device
        self._load_timeout_ns = self._limit_ns = duration_ns(manifest.load_timeout) or device.load_timeout_ns
        self._warming = False
        """True once the model is loaded and runs on made-up inputs."""

    def start(self, delay_ns: int, check_content: bool = False, *, warm: bool = True) -> None:
        """Start the process, which loads the model after `delay_ns` and warms it up. Does not wait for it.

        With `check_content` the process fails if the files have changed since the spec was read. Raises OSError if no
        process can be started.
        """
        environment = child_environment(os.environ, self._manifest.threads, self._device.environment)
        self._child = start_isolated(CHILD, environment, self._device.user)
        self._overdue_ns = monotonic_ns() + delay_ns + self._load_timeout_ns
        self._packets = PacketSocket(self._child.sock)
        memory_limit = size_bytes(self._manifest.memory_limit)
        start = Start(str(self._folder.absolute()), self._spec, delay_ns, memory_limit, check_content, warm)
        with suppress(OSError):  # the process has ended already; `is_loaded` raises
            send(self._packets, start)

    def is_loaded(self, wait_ns: int) -> bool:
        """Wait up to `wait_ns` and return True if the model is loaded and warm.

        Raises `ModelFailed` if loading failed or timed out, `WarmUpFailed` if the warm-up did.
        """
        try:
            return self._is_ready(wait_ns)
        except ProcessFailed as error:
            if self._warming:
                raise WarmUpFailed(error.reason) from error
            raise

    def _is_ready(self, wait_ns: int) -> bool:
        if not self._packets.has_arrived(wait_ns):
            if monotonic_ns() > self._overdue_ns:
                limit = f"{self._load_timeout_ns / 1e9:g} s (`load_timeout` in model.toml, worker.load_timeout_ns)"
                raise ProcessFailed(f"was not loaded within {limit}", "hang")
            return False
        message, _ = self._receive()
        if isinstance(message, Loaded):
            self._warming = True
            return False
        if isinstance(message, CallFailed):
            kind = WarmUpFailed if message.by_inputs else RowsFailed if message.rows else ModelFailed
            raise kind(message.reason.removeprefix(f"model {self._spec.key}: "))
        if not isinstance(message, ModelStarted):
            raise ModelFailed(f"got {message}, wanted Ready")
        self._warming = False
        derived_ns = min(max(HANG_FACTOR * message.slowest_ns, HANG_MIN_NS), HANG_MAX_NS)
        if not message.slowest_ns:
            derived_ns = HANG_MAX_NS
        self._limit_ns = duration_ns(self._manifest.timeout) or derived_ns
        self._child.sock.settimeout(self._limit_ns / 1e9)
        return True

    def run_batch(
        self, batch_size: int, inputs: Mapping[str, NDArray[Any]], quiet: bool = False
    ) -> tuple[Done | CallFailed, dict[str, NDArray[Any]]]:
        """Run a batch. With `quiet`, the process does not log an exception of the model.

        Raises `ModelFailed` if the process cannot run another.
        """
        headers, buffers = pack(inputs)
        # A process that died while idle is detected here. `_receive` raises with its exit code.
        with suppress(BrokenPipeError, ConnectionResetError):
            try:
                send(self._packets, Run(batch_size, headers, quiet), buffers)
            except TimeoutError:
                reason = f"process did not take its input within {self._limit_ns / 1e9:g} s"
                raise ProcessFailed(reason, "hang") from None
        message, outputs = self._receive()
        if not isinstance(message, Done | CallFailed):
            raise ModelFailed(f"got {message}, wanted Done or Failed")
        return message, outputs

    def _receive(self) -> tuple[ChannelMessage, dict[str, NDArray[Any]]]:
        try:
            return receive(self._packets)
        except TimeoutError:
            reason = f"no answer within {self._limit_ns / 1e9:g} s (`timeout` in model.toml)"
            raise ProcessFailed(reason, "hang") from None
        except (EOFError, OSError):
            raise ProcessFailed(f"process ended ({self._child.describe_end(END_S)})", "crash") from None

    def kill(self) -> None:
        """Kill the process and its children, without waiting for their end."""
        self._child.kill()

    def stop(self, grace_s: float) -> None:
        """Stop the process and its children: kill it if it has not exited after `grace_s` seconds."""
        self._packets.close()
        self._child.end(grace_s)


class PythonModel(OpenModel):
    """A model and its current process. Call `start` first."""

    def __init__(self, spec: ModelSpec, spawn: Callable[[], ModelProcess], *, warm: bool = True) -> None:
        self._spec = spec
        self._spawn = spawn
        self._process: ModelProcess | None = None
        """None while no process can be started."""
        self.kept: KeptModels[PythonModel] | None = None
        """Where `close` keeps the model if it is ready and took long to load. Set before `begin`."""
        self._warm = warm
        self._ready = False
        self._backoff = Backoff(immediate=1)
        self._next_start_ns = 0
        self._last_failure = ""

    def start(self) -> None:
        """Start the process and wait until the model is loaded and warm. Raises `ModelFailed` or `WarmUpFailed`."""
        self.begin()
        self.wait_loaded()

    def begin(self) -> None:
        """Start the process. Does not wait for the model. Raises `ModelFailed` if no process can be started."""
        process, self._begin_ns = self._spawn(), monotonic_ns()
        try:
            start_patiently(f"model {self._spec.key}", lambda: process.start(0, warm=self._warm))
        except OSError as error:
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
            kind = next((kind for kind in (WarmUpFailed, RowsFailed) if isinstance(error, kind)), ModelFailed)
            raise kind(f"model {self._spec.key}: {error.reason}") from error
        self._load_ns = monotonic_ns() - self._begin_ns

    def run_quietly(self, batch_size: int, inputs: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        return self.run(batch_size, inputs, quiet=True)

    def run(
        self, batch_size: int, inputs: Mapping[str, NDArray[Any]], quiet: bool = False
    ) -> Mapping[str, NDArray[Any]]:
        if (process := self._running_process()) is None:
            reason = f"model {self._spec.key}: is being restarted after: {self._last_failure}"
            raise ProcessFailed(reason, "restarting")
        try:
            message, outputs = process.run_batch(batch_size, inputs, quiet)
        except ModelFailed as error:
            cause = self._restart(error, quiet)
            raise ProcessFailed(f"model {self._spec.key}: {error.reason}", cause) from error
        if isinstance(message, CallFailed):
            if message.fatal:
                cause = self._restart(ModelFailed(message.reason), quiet)
                raise ProcessFailed(f"model {self._spec.key}: {message.reason}", cause)
            raise ModelFailed(f"model {self._spec.key}: {message.reason}")
        check_outputs(self._spec, batch_size, outputs)
        self._backoff.reset()
        return outputs

    def _running_process(self) -> ModelProcess | None:
        """Return the process if it has loaded the model. Start one if that failed before and its delay is over."""
        if self._process is None:
            if monotonic_ns() >= self._next_start_ns:
                self._start_again(0)
        elif not self._ready:
            try:
                self._ready = self._process.is_loaded(0)
            except ModelFailed as error:
                self._restart(error)
        return self._process if self._ready else None

    def _restart(self, error: ModelFailed, quiet: bool = False) -> str:
        """Start a new process after a growing delay. Return the cause, which is also logged unless `quiet`.

        After a failed warm-up the next process has none: the model may run on real inputs.
        """
        cause = error.cause if isinstance(error, ProcessFailed) else "crash"
        if not quiet:
            log.error("model process restarts", model=self._spec.key, cause=cause, reason=error.reason)
        self._end(0)
        self._ready, self._last_failure = False, error.reason
        self._warm = self._warm and not isinstance(error, WarmUpFailed)
        self._start_again(s(self._backoff.next_delay_s()))
        return cause

    def _start_again(self, delay_ns: int) -> None:
        """Start a process that loads the model after a delay. If none can be started, a later `run` tries again."""
        process = self._spawn()
        try:
            # the first start is checked by the model store
            process.start(delay_ns, check_content=True, warm=self._warm)
        except OSError as error:
            self._next_start_ns = monotonic_ns() + s(self._backoff.next_delay_s())
            self._last_failure = f"process could not be started: {error}"
            log.error("model process not started: trying again", model=self._spec.key, reason=str(error))
        else:
            self._process = process

    def close(self) -> None:
        """End the process, or keep the model for its next `open`."""
        kept, self.kept = self.kept, None
        if kept is not None and self._ready and self._load_ns >= KEPT_LOAD_NS:
            kept.set_content(self._spec)
            kept.keep(self._spec, self, 1)
        else:
            self._end(END_S)

    def _end(self, grace_s: float) -> None:
        if self._process is not None:
            self._process.stop(grace_s)
            self._process = None

    def kill(self) -> None:
        """Kill the process. May be called from any thread while another one waits for the process."""
        self.kept = None
        if (process := self._process) is not None:
            process.kill()


class PythonRuntime(Runtime):
    """Models written in Python: `model.py` with `class Model: def predict_batch(self, inputs) -> outputs`."""

    def __init__(self, device: DeviceConfig = HOST_DEVICE) -> None:
        self._device = device
        self.kept = KeptModels(KEPT_MAX, PythonModel.close)

    def inspect(self, folder: Path) -> ModelSpec:
        """Read the spec from `model.toml`. Raises `InvalidModel` naming file, field, got and wanted."""
        manifest = read_manifest(folder)
        if not (folder / MODEL).is_file():
            raise InvalidModel(f"{folder / MODEL}: got no such file, wanted a class Model")
        return build_spec(folder, manifest, "python", declared_signature(manifest, folder), content_bytes(folder))

    def open(self, spec: ModelSpec, folder: Path, *, warm: bool = True) -> PythonModel:
        """Start the model's process. With `warm` it runs every batch size once; see `Runtime.open`."""
        model = self._create(spec, folder, warm)
        model.start()
        return model

    def is_open(self, spec: ModelSpec) -> bool:
        """Return True if `open` returns at once: the process that was measured waits for its first LOAD."""
        return spec in self.kept

    def open_kept(self, spec: ModelSpec) -> OpenModel | None:
        """Return the model that was measured; None if its process is not kept."""
        return self.kept.take(spec)

    def measured_model(self) -> ModelRunner:
        return ModelRunner(self.kept, self._create)

    def close(self) -> None:
        self.kept.close()

    def _create(self, spec: ModelSpec, folder: Path, warm: bool) -> PythonModel:
        manifest = read_manifest(folder)
        return PythonModel(spec, lambda: ModelProcess(spec, folder, manifest, self._device), warm=warm)
