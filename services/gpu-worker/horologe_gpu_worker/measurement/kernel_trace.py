"""Kernel traces: number of kernels of a batch, the time between them, and the bytes that they move.

The paper reads the first two with Nsight Systems (section 3.1). Here, PyTorch's profiler traces a CUDA device, and ONNX
Runtime's profiler traces the operators of a model on the CPU.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from horologe_common.status import ModelFailed
from horologe_gpu_worker.measurement.share_connection import Traced
from horologe_gpu_worker.repository.manifest import read_manifest
from horologe_gpu_worker.repository.model_spec import warmup_inputs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from horologe_common.models import ModelSpec

RUNS = 5
"""Batches per trace."""


class Interval(NamedTuple):
    """Execution of one kernel, in ns."""

    begin_ns: int
    end_ns: int


def batch_gaps(kernels: Iterable[Interval], batches: int) -> Traced:
    """Return the trace of a batch, from the kernels of `batches` equal batches, one batch after another.

    The gaps are the median of the batches: on a busy host, a kernel may start milliseconds late. Time between batches
    does not count. Raises ModelFailed if the kernels are no multiple of the batches.
    """
    intervals = sorted(kernels)
    count, rest = divmod(len(intervals), batches)
    if not count or rest:
        raise ModelFailed(f"trace: got {len(intervals)} kernels of {batches} equal batches, wanted a multiple")
    return Traced(count, median(_gaps(intervals[at : at + count]) for at in range(0, len(intervals), count)))


def _gaps(kernels: list[Interval]) -> float:
    """Return the part of the time from the first to the last kernel in which no kernel ran."""
    begin_ns = busy_until = kernels[0].begin_ns
    gaps_ns = 0
    for kernel in kernels:
        gaps_ns += max(0, kernel.begin_ns - busy_until)
        busy_until = max(busy_until, kernel.end_ns)
    return gaps_ns / max(busy_until - begin_ns, 1)


def trace_cuda(run: Callable[[], object]) -> Traced:
    """Trace batches on a CUDA device with PyTorch's profiler (CUPTI). Raises ModelFailed without kernels."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(RUNS):
            run()
        torch.cuda.synchronize()
    kernels = [
        Interval(round(event.time_range.start * 1000), round(event.time_range.end * 1000))
        for event in profile.events()
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.name.startswith(("Memcpy", "Memset"))
    ]
    return batch_gaps(kernels, RUNS)


def trace_onnx(spec: ModelSpec, folder: Path, batch: int) -> Traced:
    """Trace a model on the CPU with ONNX Runtime's profiler, in a session of its own."""
    import onnxruntime

    with TemporaryDirectory() as place:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = read_manifest(folder).threads
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(place) / "trace")
        session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])
        inputs = warmup_inputs(spec, folder, batch)
        for _ in range(RUNS + 1):
            session.run(None, inputs)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    return parse_onnx_trace(events)


def parse_onnx_trace(events: list[dict[str, Any]]) -> Traced:
    """Return the trace of a batch from ONNX Runtime's events. The first batch, which allocates memory, is left out."""
    nodes = [event for event in events if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")]
    starts = sorted(event["ts"] for event in events if event["name"] == "model_run")[1:]
    if not starts:
        raise ModelFailed(f"trace: got {len(nodes)} kernels of fewer than two batches, wanted two batches")
    kept = [event for event in nodes if event["ts"] >= starts[0]]
    kernels = [Interval(event["ts"] * 1000, (event["ts"] + event["dur"]) * 1000) for event in kept]
    trace = batch_gaps(kernels, len(starts))
    sizes = ("activation_size", "parameter_size", "output_size")
    moved = sum(int(event["args"].get(size, 0)) for event in kept for size in sizes)
    return msgspec.structs.replace(trace, moved_bytes=moved / len(starts))
