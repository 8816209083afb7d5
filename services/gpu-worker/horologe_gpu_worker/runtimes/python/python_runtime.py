"""Python runtime: a `predict_batch` class in a process of its own, which isolates crashes, hangs and leaks.

A process that died is restarted in the background after a growing delay. Calls fail until it is ready, because a lane
that waited for it would delay every other model.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from horologe_common.clock import monotonic_ns, ms, s
from horologe_common.models import ModelSpec
from horologe_common.service.isolation import child_environment, describe_exit, user_options, user_variables
from horologe_common.service.log import logger
from horologe_common.status import ModelFailed
from horologe_gpu_worker.repository.manifest import (
    InvalidModel,
    Manifest,
    build_spec,
    declared_signature,
    duration_ns,
    model_files,
    read_manifest,
    size_bytes,
)
from horologe_gpu_worker.repository.model_signature import check_outputs
from horologe_gpu_worker.runtime import HOST_DEVICE, ProcessFailed
from horologe_gpu_worker.runtimes.python.channel import Channel, ChannelMessage, Done, Failed, Ready, Run, Start, pack
from horologe_gpu_worker.runtimes.python.measured_models import KeptModels, MeasuredModel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from horologe_gpu_worker.runtime import DeviceConfig, OpenModel

MODEL = "model.py"
CHILD = "horologe_gpu_worker.runtimes.python.child"
HANG_FACTOR, HANG_MIN_NS, HANG_MAX_NS = 10, s(1), s(30)
"""Without `timeout`, a call is hung after 10 times the slowest warm-up run, within these bounds."""
BACKOFF_NS, BACKOFF_MAX_NS = ms(100), s(10)
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
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, delay_ns: int, check_content: bool = False) -> None:
        """Start the process, which loads the model after `delay_ns`. Does not wait for it.

        With `check_content` the process fails if the files have changed since the spec was read.
        """
        self._overdue_ns = monotonic_ns() + delay_ns + self._load_timeout_ns
        self._sock, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        command = [sys.executable, "-P", "-m", CHILD, str(theirs.fileno()), str(lifeline)]
        environment = child_environment(os.environ, self._manifest.threads, self._device.environment)
        try:
            self._process = subprocess.Popen(
                command,
                env=environment | user_variables(self._device.user),
                **user_options(self._device.user),
                pass_fds=(theirs.fileno(), lifeline),
                stdin=subprocess.DEVNULL,
                stdout=2,  # stderr, the worker's log: a separate pipe could fill and block the model
                start_new_session=True,  # a process group, so that its children are killed with it
            )
        except OSError as error:
            self._start_error = str(error)
        finally:
            theirs.close()
            os.close(lifeline)
        self._channel = Channel(self._sock)
        memory_limit = size_bytes(self._manifest.memory_limit)
        start = Start(str(self._folder.resolve()), self._spec, delay_ns, memory_limit, check_content)
        with suppress(OSError):  # the process has ended already; `is_loaded` raises
            self._channel.send(start)

    def is_loaded(self, wait_ns: int) -> bool:
        """Wait up to `wait_ns` and return True if the model is loaded. Raises `ModelFailed` if loading failed or timed
        out.
        """
        poll = select.poll()  # select() is limited to descriptors below 1,024
        poll.register(self._sock, select.POLLIN)
        if not poll.poll(wait_ns / 1e6):
            if monotonic_ns() > self._overdue_ns:
                reason = f"was not loaded within {self._load_timeout_ns / 1e9:g} s (`load_timeout` in model.toml)"
                raise ProcessFailed(reason, "hang")
            return False
        message, _ = self._receive()
        if not isinstance(message, Ready):
            raise ModelFailed(message.reason if isinstance(message, Failed) else f"got {message}, wanted Ready")
        derived_ns = min(max(HANG_FACTOR * message.slowest_ns, HANG_MIN_NS), HANG_MAX_NS)
        self._limit_ns = duration_ns(self._manifest.timeout) or derived_ns
        self._sock.settimeout(self._limit_ns / 1e9)
        return True

    def run_batch(
        self, batch_size: int, inputs: Mapping[str, NDArray[Any]]
    ) -> tuple[Done | Failed, dict[str, NDArray[Any]]]:
        """Run a batch. Raises `ModelFailed` if the process cannot run another."""
        headers, buffers = pack(inputs)
        # A process that died while idle is detected here. `_receive` raises with its exit code.
        with suppress(BrokenPipeError, ConnectionResetError):
            try:
                self._channel.send(Run(batch_size, headers), buffers)
            except TimeoutError:
                reason = f"process did not take its input within {self._limit_ns / 1e9:g} s"
                raise ProcessFailed(reason, "hang") from None
        message, outputs = self._receive()
        if not isinstance(message, Done | Failed):
            raise ModelFailed(f"got {message}, wanted Done or Failed")
        return message, outputs

    def _receive(self) -> tuple[ChannelMessage, dict[str, NDArray[Any]]]:
        try:
            return self._channel.receive()
        except TimeoutError:
            reason = f"no answer within {self._limit_ns / 1e9:g} s (`timeout` in model.toml)"
            raise ProcessFailed(reason, "hang") from None
        except (EOFError, OSError):
            raise ProcessFailed(f"process ended ({self._exit_reason()})", "crash") from None

    def _exit_reason(self) -> str:
        if self._process is None:
            return f"could not be started: {self._start_error}"
        with suppress(subprocess.TimeoutExpired):
            return describe_exit(self._process.wait(END_S))
        return "closed its socket"

    def kill(self) -> None:
        """Kill the process and its children, without waiting for their end."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def stop(self, grace_s: float) -> None:
        """Stop the process: kill it if it has not exited after `grace_s` seconds."""
        self._channel.close()
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_s)
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._lifeline)


class PythonModel:
    """A model and its current process. Call `start` first."""

    def __init__(self, spec: ModelSpec, spawn: Callable[[], ModelProcess]) -> None:
        self._spec = spec
        self._spawn = spawn
        self._ready = False
        self._failures = 0
        self._last_failure = ""

    def start(self) -> None:
        """Start the process and wait until the model is loaded. Raises `ModelFailed`."""
        self.begin()
        self.wait_loaded()

    def begin(self) -> None:
        """Start the process. Does not wait for it."""
        self._process = self._spawn()
        self._process.start(0)

    def wait_loaded(self) -> None:
        """Wait until the model is loaded. Raises `ModelFailed`."""
        try:
            while not self._ready:
                self._ready = self._process.is_loaded(ms(100))
        except ModelFailed as error:
            self._process.stop(0)
            raise ModelFailed(f"model {self._spec.key}: {error.reason}") from error

    def run(self, batch_size: int, inputs: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """Run one batch; see `OpenModel.run`. Raises `ModelFailed` while the process is being restarted."""
        if not self._is_running():
            reason = f"model {self._spec.key}: is being restarted after: {self._last_failure}"
            raise ProcessFailed(reason, "restarting")
        try:
            message, outputs = self._process.run_batch(batch_size, inputs)
        except ModelFailed as error:
            cause = self._restart(error)
            raise ProcessFailed(f"model {self._spec.key}: {error.reason}", cause) from error
        if isinstance(message, Failed):
            if message.fatal:
                cause = self._restart(ModelFailed(message.reason))
                raise ProcessFailed(f"model {self._spec.key}: {message.reason}", cause)
            raise ModelFailed(f"model {self._spec.key}: {message.reason}")
        check_outputs(self._spec, batch_size, outputs)
        self._failures = 0
        return outputs

    def _is_running(self) -> bool:
        if not self._ready:
            try:
                self._ready = self._process.is_loaded(0)
            except ModelFailed as error:
                self._restart(error)
        return self._ready

    def _restart(self, error: ModelFailed) -> str:
        """Start a new process after a growing delay. Return the cause, which is also logged."""
        cause = error.cause if isinstance(error, ProcessFailed) else "crash"
        log.error("model process restarts", model=self._spec.key, cause=cause, reason=error.reason)
        self._process.stop(0)
        delay_ns = min(BACKOFF_NS << (self._failures - 1), BACKOFF_MAX_NS) if self._failures else 0
        self._failures = min(self._failures + 1, 16)
        self._ready, self._last_failure = False, error.reason
        self._process = self._spawn()
        self._process.start(delay_ns, check_content=True)  # the first start is checked by the model store
        return cause

    def kill(self) -> None:
        """Kill the process. May be called from any thread while another one waits for the process."""
        self._process.kill()

    def close(self) -> None:
        self._process.stop(END_S)


class PythonRuntime:
    """Models written in Python: `model.py` with `class Model: def predict_batch(self, inputs) -> outputs`."""

    inline_io = True

    def __init__(self, device: DeviceConfig = HOST_DEVICE) -> None:
        self._device = device
        self.kept = KeptModels()

    def inspect(self, folder: Path) -> ModelSpec:
        """Read the spec from `model.toml`. Raises `InvalidModel` naming file, field, got and wanted."""
        manifest = read_manifest(folder)
        if not (folder / MODEL).is_file():
            raise InvalidModel(f"{folder / MODEL}: got no such file, wanted a class Model")
        size = sum(path.stat().st_size for path in model_files(folder))
        return build_spec(folder, manifest, "python", declared_signature(manifest, folder), size)

    def open(self, spec: ModelSpec, folder: Path) -> PythonModel:
        """Start the model's process, which runs every batch size once. Raises `ModelFailed`."""
        model = self._create(spec, folder)
        model.start()
        return model

    def is_open(self, spec: ModelSpec) -> bool:
        """Return True if `open` returns at once: the process that was measured waits for its first LOAD."""
        return spec in self.kept

    def open_kept(self, spec: ModelSpec) -> OpenModel | None:
        """Return the model that was measured; None if its process is not kept."""
        return self.kept.take(spec)

    def measured_model(self) -> MeasuredModel:
        """Return what opens and runs a model to measure it."""
        return MeasuredModel(self, self._create)

    def close(self) -> None:
        """End the processes that wait for their first LOAD."""
        self.kept.close()

    def _create(self, spec: ModelSpec, folder: Path) -> PythonModel:
        manifest = read_manifest(folder)
        return PythonModel(spec, lambda: ModelProcess(spec, folder, manifest, self._device))
