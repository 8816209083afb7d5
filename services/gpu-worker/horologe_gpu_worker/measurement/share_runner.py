"""Runs one model on one share: opens it, times its batches, traces it, and measures the rates of copies."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from horologe_common.clock import monotonic_ns
from horologe_common.status import ModelFailed
from horologe_gpu_worker.device_shares import enter_share
from horologe_gpu_worker.measurement.emulated_figures import EmulatedFigures
from horologe_gpu_worker.measurement.kernel_trace import trace_cuda, trace_onnx
from horologe_gpu_worker.measurement.share_batches import BatchTimes, ShareBatches
from horologe_gpu_worker.measurement.share_connection import Measured, MeasuredRates, Ready, ShareJob, Traced
from horologe_gpu_worker.repository.manifest import read_manifest
from horologe_gpu_worker.repository.model_signature import tensor_bytes
from horologe_gpu_worker.repository.profile_cache import ON_DEVICE
from horologe_gpu_worker.repository.version_inspector import runtime_name
from horologe_gpu_worker.runtimes import RUNTIMES
from horologe_gpu_worker.settings import resolve_device

if TYPE_CHECKING:
    from horologe_common.models import ModelSpec

COPY_BYTES, COPIES = 64 << 20, 10
"""Bytes of a copy, more than a cache holds; number of copies, of which the fastest counts."""
UNTRACED = Traced(1, 0.0)
"""Trace of a model whose kernels cannot be distinguished."""


class ShareRunner:
    """An open model on a share. Call `open` first. Raises `InvalidModel` or `ModelFailed`."""

    def __init__(self, job: ShareJob) -> None:
        self._folder = Path(job.folder)
        self._settings = job.settings
        self._batches: ShareBatches | None = None

    def open(self) -> Ready:
        """Limit this process to its share, open the model and run every batch size once. Also raises SettingsError."""
        device_file, percent = self._settings.emulated_device, enter_share(self._settings).percent
        self._settings = resolve_device(msgspec.structs.replace(self._settings, share_percent=percent))
        name = runtime_name(self._folder, read_manifest(self._folder))
        runtime = RUNTIMES[name](self._settings)
        self._spec = runtime.place(runtime.inspect(self._folder), self._folder)
        runtime.prepare(self._spec, self._folder)
        self._model = runtime.open(self._spec, self._folder)
        self._emulated = EmulatedFigures(device_file, self._folder) if device_file else None
        load_bytes, feedback_bytes = 0.0, 0.0
        if self._emulated:
            load_bytes = self._emulated.model.load_bytes  # its EXEC includes the feedback
        elif not runtime.inline_io:
            load_bytes, feedback_bytes = (_row_bytes(self._spec, outputs) for outputs in (False, True))
        return Ready(percent, self._spec.batch_sizes, load_bytes, feedback_bytes)

    def begin(self, batch: int) -> None:
        """Prepare batches of a compiled size and run the first one."""
        self.stop()
        if batch not in self._spec.batch_sizes:
            raise ModelFailed(f"model {self._spec.key}: batch {batch}: wanted one of {list(self._spec.batch_sizes)}")
        self._batches = ShareBatches(self._model, self._spec, self._folder, batch)
        self._batch = batch
        self._batches.run_next()

    @property
    def running(self) -> bool:
        """True if batches have begun and not stopped."""
        return self._batches is not None

    def run_next(self) -> BatchTimes:
        """Run a batch."""
        assert self._batches is not None
        return self._batches.run_next()

    def measure(self, duration_ns: int) -> Measured:
        """Run batches for a time, at least one, and return their mean times."""
        end_ns = monotonic_ns() + duration_ns
        times = [self.run_next()]
        while monotonic_ns() < end_ns:
            times.append(self.run_next())
        gpu_ms = [batch.gpu_ns / 1e6 for batch in times]
        load_ms, feedback_ms = (fmean(batch[field] for batch in times) / 1e6 for field in (0, 2))
        return Measured(len(times), load_ms, fmean(gpu_ms), feedback_ms, pstdev(gpu_ms))

    def stop(self) -> None:
        """Run no more batches."""
        if self._batches:
            self._batches.close()
            self._batches = None

    def trace(self) -> Traced:
        """Trace some of the batches."""
        assert self._batches is not None
        if self._emulated:
            return self._emulated.trace(self._batch, self._settings.share_percent)
        on_device = self._spec.on_gpu and self._spec.runtime in ON_DEVICE
        if self._spec.runtime == "onnx" and not on_device:
            return trace_onnx(self._spec, self._folder, self._batch)
        trace = trace_cuda(self._batches.run_next) if on_device else UNTRACED
        return msgspec.structs.replace(trace, moved_bytes=self._tensor_bytes())

    def _tensor_bytes(self) -> float:
        """Return the bytes of weights, inputs and outputs of a batch: the least that a batch reads and writes."""
        return self._spec.weights_bytes + self._batch * sum(_row_bytes(self._spec, side) for side in (False, True))

    def rates(self) -> MeasuredRates:
        """Return the rates of copies to the device and within its memory."""
        if self._emulated:
            return MeasuredRates(self._emulated.gpu.pcie_bytes_per_ms, 1.0)
        if self._settings.cuda is None:
            return MeasuredRates(0.0, 2 * COPY_BYTES / _host_copy_ms())
        return cuda_rates(self._settings.cuda)


def _row_bytes(spec: ModelSpec, outputs: bool) -> float:
    """Return the bytes of a row of the inputs or outputs, at the profile's length. Strings count as nothing."""
    return float(sum(tensor_bytes(spec, tensor, 1) for tensor in (spec.outputs if outputs else spec.inputs)))


def _host_copy_ms() -> float:
    source, target = np.ones(COPY_BYTES, np.uint8), np.zeros(COPY_BYTES, np.uint8)
    times = []
    for _ in range(COPIES):
        begin_ns = monotonic_ns()
        np.copyto(target, source)
        times.append(monotonic_ns() - begin_ns)
    return min(times) / 1e6


def cuda_rates(device: int) -> MeasuredRates:
    """Time copies with CUDA events. A copy within the device's memory reads and writes."""
    import torch

    host = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    first, second = (torch.empty(COPY_BYTES, dtype=torch.uint8, device=f"cuda:{device}") for _ in range(2))
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def copy_ms(target: torch.Tensor, source: torch.Tensor) -> float:
        times = []
        for _ in range(COPIES):
            begin.record()
            target.copy_(source, non_blocking=True)
            end.record()
            end.synchronize()
            times.append(float(begin.elapsed_time(end)))
        return min(times)

    return MeasuredRates(COPY_BYTES / copy_ms(first, host), 2 * COPY_BYTES / copy_ms(second, first))
