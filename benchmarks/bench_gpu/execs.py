"""EXEC: duration, variation, what a graph saves, and the cost of running several at run_eager (Clockwork Fig. 2b)."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from bench_gpu.figures import Row, row, sampled, timed
from bench_gpu.rig import BATCH_SIZES
from horologe_gpu_worker.runtimes.pytorch.cuda_graphs import CapturedGraph, GraphCapturer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench_gpu.rig import Rig

TAIL_SAMPLES, BATCH_SAMPLES, EAGER_SAMPLES = 22_000, 2_000, 300
CONCURRENT = (1, 2, 4, 8, 16)
CONCURRENT_SAMPLES = 12_000


def distribution(rig: Rig) -> Iterator[Row]:
    """Measure batch 1 of each network alone, with enough samples for p99.99, then the other batch sizes."""
    for name in rig.nets:
        for size in BATCH_SIZES:
            wanted = rig.samples(TAIL_SAMPLES if size == 1 else BATCH_SAMPLES)
            run, device_ns = rig.runner(name, size), []
            lane_ns = sampled(lambda: timed(lambda: device_ns.append(run())), wanted, 60 if size == 1 else 20)  # noqa: B023 (called here)
            device_ns = device_ns[-len(lane_ns) :]
            yield row("EXEC alone", f"{name} batch {size}", device_ns, **{"rows/s": size * 1e9 / _median(device_ns)})
            if size == 1:
                yield row("EXEC alone, host clock", f"{name} batch {size}", lane_ns)


def eager(rig: Rig) -> Iterator[Row]:
    """Measure the same operators launched one by one, and the replay of their graph."""
    for name in rig.nets:
        for size in (BATCH_SIZES[0], BATCH_SIZES[-1]):
            replay = _median(sampled(rig.runner(name, size), rig.samples(EAGER_SAMPLES), 10))
            times_ns = sampled(_eager_runner(rig, name, size), rig.samples(EAGER_SAMPLES), 10)
            yield row("EXEC eager", f"{name} batch {size}", times_ns, **{"eager/graph p50": _median(times_ns) / replay})


def _eager_runner(rig: Rig, name: str, size: int) -> Any:
    model, slot = rig.staged(name, size)
    forward, weights = rig.program(name).forward, model.tensors
    inputs = [tensor.view(slot.inputs) for tensor in slot.layout.inputs]
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def run_eager() -> int:
        with torch.no_grad(), torch.cuda.stream(rig.engine.exec_stream):
            begin.record()
            forward(*weights, *inputs)
            end.record()
            end.synchronize()
        return round(begin.elapsed_time(end) * 1e6)

    return run_eager


class _Client(NamedTuple):
    """One of several clients of the device, with its own graph, memory and stream."""

    captured: CapturedGraph
    stream: Any
    begin: Any
    end: Any

    def launch(self) -> None:
        with torch.cuda.stream(self.stream):
            self.begin.record()
            self.captured.graph.replay()
            self.end.record()


def concurrency(rig: Rig) -> Iterator[Row]:
    """Measure 1 to 16 closed-loop clients at batch 1. One thread launches for all, to exclude Python's lock."""
    for name in rig.nets:
        model = rig.model(name)
        clients = []
        for _ in range(max(CONCURRENT)):
            capturer = GraphCapturer(0)  # a separate memory pool, because these graphs run at the same time
            captured = capturer.capture(rig.program(name).forward, model.tensors, rig.layout(name, 1))
            events = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            clients.append(_Client(captured, torch.cuda.Stream(rig.device), *events))
        alone = (0.0, 0.0)
        for count in CONCURRENT:
            times_ns, rate = _together(clients[:count], rig.samples(CONCURRENT_SAMPLES), seconds=15)
            tail = sorted(times_ns)[int(0.999 * len(times_ns))]
            alone = alone if count > 1 else (rate, tail)
            notes = {"runs/s": rate, "throughput x": rate / alone[0], "p99.9 x": tail / alone[1]}
            yield row("EXEC concurrent", f"{name} x{count}", times_ns, **notes)


def _together(clients: list[_Client], samples: int, seconds: float) -> tuple[list[int], float]:
    """Return the device times, each run launched when its client's previous run has ended, and the runs per second."""
    times_ns: list[int] = []
    skipped = min(100, samples // 10)
    for client in clients:
        client.launch()
    start_ns = begin_ns = perf_counter_ns()
    while len(times_ns) < samples and perf_counter_ns() < start_ns + seconds * 1e9:
        for client in clients:
            if client.end.query():
                if skipped:
                    skipped -= 1
                    begin_ns = perf_counter_ns()
                else:
                    times_ns.append(round(client.begin.elapsed_time(client.end) * 1e6))
                client.launch()
    rate = len(times_ns) / ((perf_counter_ns() - begin_ns) / 1e9)
    torch.cuda.synchronize()
    return times_ns, rate


def _median(values: list[int]) -> float:
    return float(sorted(values)[len(values) // 2])
