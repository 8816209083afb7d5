"""Process of a model as its worker sees it: start, batches, end; messages of a msgpack header and raw tensor bytes."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from horologe_common.clock import monotonic_ns, s
from horologe_common.models import ModelSpec, nbytes
from horologe_common.service.parent_link import PacketSocket
from horologe_common.service.processes import child_environment, start_isolated
from horologe_common.status import HorologeError, ModelFailed, Status
from horologe_common.wire import Tensor
from horologe_common.wire.frames import decode_array, encode_array
from horologe_gpu_worker.core.stream_step import Step
from horologe_gpu_worker.repository.manifest import duration_ns, size_bytes
from horologe_gpu_worker.repository.manifest_fields import Manifest
from horologe_gpu_worker.runtime import ProcessFailed, RowsFailed, WarmUpFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from horologe_common.core.protocol import Buffer
    from horologe_gpu_worker.runtimes.python.model_environment import ModelEnvironment
    from horologe_gpu_worker.settings import WorkerSettings

CHILD = "horologe_gpu_worker.runtimes.python.model_process"
HANG_FACTOR, HANG_MIN_NS, HANG_MAX_NS = 10, s(1), s(30)
"""Without `timeout`, a call is hung after 10 times the slowest warm-up run, within these bounds. Without a warm-up, a
call is hung after `HANG_MAX_NS`."""
END_S = 0.5
"""Seconds that a model has to exit by itself (its `atexit`) when it is unloaded."""


NO_GPU = " (a Python model gets a GPU by `gpu_memory` in model.toml, on a worker with worker.device = 'cuda')"


class Start(msgspec.Struct, tag="start", array_like=True, frozen=True):
    """First message to the process: load `folder`/model.py. With `warm`, run every batch size once."""

    folder: str
    spec: ModelSpec
    memory_limit_bytes: int
    warm: bool = True
    device: str = ""
    """`cuda`: the model's process sees the worker's CUDA device, and no other one. Else it sees none."""
    gpu_memory_bytes: int = 0
    """Limit of the process's memory on that device."""


class Loaded(msgspec.Struct, tag="loaded", array_like=True, frozen=True):
    """First reply to Start: the model is loaded, and the warm-up begins. A crash from now on is due to its inputs."""


class ModelStarted(msgspec.Struct, tag="ready", array_like=True, frozen=True):
    """Last reply to Start. `slowest_ns`: duration of the slowest warm-up run; 0 without a warm-up."""

    slowest_ns: int


class Run(msgspec.Struct, tag="run", array_like=True, frozen=True):
    """Run a batch, or one step of a stream. The reply is Done or ModelCallFailed."""

    batch_size: int
    tensors: tuple[Tensor, ...]
    quiet: bool = False
    """Do not log an exception of the model."""
    rows: tuple[int, ...] = ()
    """Rows of each request in the batch. Empty: made-up inputs."""
    step: Step | None = None
    """The step of a stream. Only the first one has inputs."""


class CloseStreams(msgspec.Struct, tag="end", array_like=True, frozen=True):
    """Close these streams of an owner, or all of them; see `OpenStreams.end`. There is no reply."""

    owner: str
    streams: tuple[int, ...] = ()


class Done(msgspec.Struct, tag="done", array_like=True, frozen=True):
    tensors: tuple[Tensor, ...]
    more: bool = False
    """More items of the stream may follow."""
    failed: dict[int, str] = {}
    """Why single requests failed, by their index in `rows`. If all did, there are no tensors."""


class ModelCallFailed(msgspec.Struct, tag="failed", array_like=True, frozen=True):
    """The model raised an exception or returned an invalid result. `fatal`: the process cannot continue."""

    reason: str
    fatal: bool = False
    by_inputs: bool = False
    """The model is loaded, and raised the exception on made-up inputs."""
    rows: bool = False
    """In the warm-up: the model fails because its batch has more rows than one, or other rows than its outputs."""
    status: int = int(Status.FAILED)
    """REFUSED, LOST: see `OpenStreams.step`."""


ChannelMessage: TypeAlias = Start | Loaded | ModelStarted | Run | CloseStreams | Done | ModelCallFailed

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ChannelMessage)


def send(packets: PacketSocket, message: ChannelMessage, buffers: Sequence[Buffer] = ()) -> None:
    """Send a message. Raises `OSError` if the peer has disconnected, `TimeoutError` after the socket's timeout."""
    packets.send([_encoder.encode(message), *buffers])


def receive(packets: PacketSocket) -> tuple[ChannelMessage, dict[str, NDArray[Any]]]:
    """Receive the next message and its tensors by name.

    Raises `EOFError` if the peer has closed the socket, `TimeoutError` after the socket's timeout, `ModelFailed` for an
    invalid message.
    """
    try:
        header, *frames = packets.receive()
        message: ChannelMessage = _decoder.decode(header)
        tensors = message.tensors if isinstance(message, Run | Done) else ()
        return message, {tensor.name: _array(tensor, frame) for tensor, frame in zip(tensors, frames, strict=True)}
    except (msgspec.MsgspecError, HorologeError, ValueError) as error:
        raise ModelFailed(f"message: {error}") from error


def _array(tensor: Tensor, frame: memoryview) -> NDArray[Any]:
    if tensor.datatype != "BYTES" and len(frame) != nbytes(tensor.datatype, tensor.shape):
        raise ModelFailed(f"tensor {tensor.name!r}: got {len(frame)} bytes for {tensor.shape}")
    return decode_array(tensor, frame)


def pack(arrays: Mapping[str, NDArray[Any]], side: str = "input") -> tuple[tuple[Tensor, ...], list[Buffer]]:
    """Return headers and bytes of arrays. Raises `InvalidInput` for a dtype that the protocol does not have."""
    packed = [encode_array(name, array, side) for name, array in arrays.items()]
    return tuple(header for header, _ in packed), [buffer for _, buffer in packed]


def gpu_variables(cuda: int | None, memory_bytes: int, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment by which a process sees CUDA device `cuda` of this one, and no other; with a limit of 0,
    none at all.

    A MIG device, and the part of an MPS share, are in the variables that the process inherits. MPS limits the memory of
    every library; `limit_gpu_memory` only that of PyTorch.
    """
    if cuda is None or not memory_bytes:
        return {"CUDA_VISIBLE_DEVICES": ""}
    visible = [device for device in variables.get("CUDA_VISIBLE_DEVICES", "").split(",") if device]
    device = visible[cuda].strip() if cuda < len(visible) else str(cuda)
    return {"CUDA_VISIBLE_DEVICES": device, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={memory_bytes >> 20}M"}


class ModelProcess:
    """A child process. Call `start` first."""

    def __init__(
        self,
        spec: ModelSpec,
        folder: Path,
        manifest: Manifest,
        settings: WorkerSettings,
        environment: ModelEnvironment,
    ) -> None:
        self._spec = spec
        self._environment = environment
        self._folder = folder
        self._manifest = manifest
        self._settings = settings
        self._load_timeout_ns = self._limit_ns = duration_ns(manifest.load_timeout) or settings.load_timeout_ns
        self._warming = False
        """True once the model is loaded and runs on made-up inputs."""

    def start(self, *, warm: bool = True) -> None:
        """Start the process, which loads the model and warms it up. Does not wait for it. Raises OSError if no process
        can be started.
        """
        variables = child_environment(os.environ, self._manifest.threads, self._settings.model_environment)
        gpu_memory = size_bytes(self._manifest.gpu_memory) if self._spec.on_gpu else 0
        variables = self._environment.variables(variables) | gpu_variables(self._settings.cuda, gpu_memory, os.environ)
        self._child = start_isolated(CHILD, variables, self._settings.model_user, python=self._environment.python)
        self._overdue_ns = monotonic_ns() + self._load_timeout_ns
        self._packets = PacketSocket(self._child.sock)
        start = Start(
            str(self._folder.absolute()),
            self._spec,
            size_bytes(self._manifest.memory_limit),
            warm,
            "cuda" if self._spec.on_gpu else "cpu",
            gpu_memory,
        )
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
        while self._packets.has_arrived(wait_ns):
            message, _ = self._receive()
            if not isinstance(message, Loaded):
                self._finish_start(message)
                return True
            self._warming = True
        if monotonic_ns() > self._overdue_ns:
            limit = f"{self._load_timeout_ns / 1e9:g} s (`load_timeout` in model.toml, worker.load_timeout_ns)"
            raise ProcessFailed(f"was not loaded within {limit}", "hang")
        return False

    def _finish_start(self, message: ChannelMessage) -> None:
        """Set the timeout of calls by the last reply to Start. Raises the model's error if the start failed."""
        if isinstance(message, ModelCallFailed):
            kind = WarmUpFailed if message.by_inputs else RowsFailed if message.rows else ModelFailed
            hint = NO_GPU if "CUDA" in message.reason and not self._spec.on_gpu else ""
            raise kind(message.reason.removeprefix(f"model {self._spec.key}: ") + hint)
        if not isinstance(message, ModelStarted):
            raise ModelFailed(f"got {message}, wanted Ready")
        self._warming = False
        derived_ns = min(max(HANG_FACTOR * message.slowest_ns, HANG_MIN_NS), HANG_MAX_NS)
        if not message.slowest_ns:
            derived_ns = HANG_MAX_NS
        self._limit_ns = duration_ns(self._manifest.timeout) or derived_ns
        self._child.sock.settimeout(self._limit_ns / 1e9)

    def run(
        self,
        batch_size: int,
        inputs: Mapping[str, NDArray[Any]],
        quiet: bool = False,
        rows: Sequence[int] = (),
        step: Step | None = None,
    ) -> tuple[Done | ModelCallFailed, dict[str, NDArray[Any]]]:
        """Run a batch of requests with `rows` rows each, or a step of a stream.

        With `quiet`, the process logs no exception of the model. Raises `ModelFailed` if it cannot run another batch.
        """
        headers, buffers = pack(inputs)
        # A process that died while idle is detected here. `_receive` raises with its exit code.
        with suppress(BrokenPipeError, ConnectionResetError):
            try:
                send(self._packets, Run(batch_size, headers, quiet, tuple(rows), step), buffers)
            except TimeoutError:
                reason = f"process did not take its input within {self._limit_ns / 1e9:g} s"
                raise ProcessFailed(reason, "hang") from None
        reply, outputs = self._receive()
        if not isinstance(reply, Done | ModelCallFailed):
            raise ModelFailed(f"got {reply}, wanted Done or Failed")
        return reply, outputs

    def end_streams(self, owner: str, streams: tuple[int, ...]) -> None:
        """Close streams. Does not wait for it. A process that has ended has none."""
        with suppress(OSError):
            send(self._packets, CloseStreams(owner, streams))

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
