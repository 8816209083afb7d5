"""Addresses of weights: a captured graph holds them, and there are three ways to keep them valid.

`mapped`: a permanent address range; pages are mapped into it at LOAD. `captured`: graphs are captured again at every
LOAD. `copied`: graphs over one static buffer, into which a model's weights are copied if another model ran before.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING

import torch

from bench_gpu.figures import Row, row, sampled, timed
from bench_gpu.loads import busy
from bench_gpu.rig import BATCH_SIZES
from horologe_gpu_worker.runtimes.pytorch.cuda_graphs import GraphCapturer
from horologe_gpu_worker.runtimes.pytorch.paging.paged_weights import tensor_views

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench_gpu.rig import Rig

SAMPLES, CAPTURES = 200, 5


def addresses(rig: Rig) -> Iterator[Row]:
    """Measure what each way adds to a LOAD (`mapped`, `captured`) or to an EXEC after another model's (`copied`)."""
    for name in rig.nets:
        yield from _mapped(rig, name)
        yield from _captured(rig, name)
        yield from _copied(rig, name)


def _mapped(rig: Rig, name: str) -> Iterator[Row]:
    """Measure mapping and unmapping without the copy, alone and beside EXEC: the driver may wait for the device."""
    model = rig.model(name)
    other = next(net for net in rig.nets if net != name)
    pages = f"{name} {model._range.pages} pages"
    model.close()
    for beside in (None, other):
        with busy(rig, beside) as execs_ns:
            map_ns, unmap_ns = [], []
            for _ in range(rig.samples(SAMPLES)):
                map_ns.append(timed(model.map_pages))
                unmap_ns.append(timed(model.close))
        case = pages + (f" beside EXEC of {beside}" if beside else "")
        yield row("mapped: map", case, map_ns)
        yield row("mapped: unmap", case, unmap_ns)
        if beside:
            yield row("mapped: EXEC beside", f"{beside} batch 1", execs_ns)
    model.load()


def _captured(rig: Rig, name: str) -> Iterator[Row]:
    """Measure the capture of all batch sizes in the shared pool. Libraries are warm, so nothing runs before."""
    model = rig.model(name)
    times_ns = []
    for _ in range(max(2, min(CAPTURES, rig.samples(CAPTURES)))):
        begin_ns = perf_counter_ns()
        for size in BATCH_SIZES:
            rig.engine.capturer.capture(rig.program(name).forward, model.tensors, rig.layout(name, size), 0)
        times_ns.append(perf_counter_ns() - begin_ns)
    yield row("captured: all batch sizes", name, times_ns)


def _copied(rig: Rig, name: str) -> Iterator[Row]:
    """Measure the copy from the model's pages to the static buffer, then a replay after it."""
    model, program = rig.model(name), rig.program(name)
    static = torch.empty(program.layout.size, dtype=torch.uint8, device=rig.device)
    static.copy_(model.base[: program.layout.size])
    captured = GraphCapturer(0).capture(program.forward, tensor_views(static, program.layout), rig.layout(name, 1))
    begin, middle, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    execs_ns: list[int] = []

    def copy_and_replay() -> int:
        with torch.cuda.stream(rig.engine.exec_stream):
            begin.record()
            static.copy_(model.base[: program.layout.size], non_blocking=True)
            middle.record()
            captured.graph.replay()
            end.record()
            end.synchronize()
        execs_ns.append(round(middle.elapsed_time(end) * 1e6))
        return round(begin.elapsed_time(middle) * 1e6)

    copies_ns = sampled(copy_and_replay, rig.samples(SAMPLES), 5)
    yield row("copied: weights", f"{name} {program.layout.size / 1e6:.0f} MB", copies_ns)
    yield row("copied: EXEC after", f"{name} batch 1", execs_ns)
