"""LOAD, INPUT and OUTPUT: against the ceiling of a plain copy, and beside a continuous EXEC."""

from __future__ import annotations

import contextlib
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import torch

from bench_gpu.figures import Row, row, sampled, timed
from horologe_gpu_worker.runtimes.pytorch import cuda_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench_gpu.rig import Rig

CEILING_BYTES = 256 << 20
LOAD_SAMPLES, COPY_SAMPLES, BESIDE_SAMPLES = 60, 1_000, 3_000


def ceilings(rig: Rig) -> Iterator[Row]:
    """Measure one large copy alone: the upper bound of LOAD."""
    size = (1 << 20) if rig.pretend else CEILING_BYTES
    host = cuda_engine.pinned_memory(size)
    host.random_(0, 256)
    on_device = torch.empty(size, dtype=torch.uint8, device=rig.device)
    beside = torch.empty_like(on_device)
    for name, to, source, passes in (
        ("host to device, pinned", on_device, host, 1),
        ("device to host, pinned", host, on_device, 1),
        ("device to device, read + written", beside, on_device, 2),
    ):
        times_ns = sampled(_copier(to, source), rig.samples(50), 5)
        rate = passes * size / _median(times_ns)
        rig.copy_gb_s = rig.copy_gb_s or rate
        yield row("ceiling", name, times_ns, **{"GB/s": rate})


def _copier(to: Any, source: Any) -> Callable[[], int]:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    stream = torch.cuda.Stream(to.device if to.is_cuda else source.device)

    def copy_ns() -> int:
        with torch.cuda.stream(stream):
            begin.record()
            to.copy_(source, non_blocking=True)
            end.record()
        end.synchronize()
        return round(begin.elapsed_time(end) * 1e6)

    return copy_ns


def loads(rig: Rig) -> Iterator[Row]:
    """Measure UNLOAD and LOAD in turn, alone and beside another network's EXEC, by the host's clock."""
    for name in rig.nets:
        other = next(net for net in rig.nets if net != name)
        model = rig.model(name)
        size = model.size
        for beside in (None, other):
            with busy(rig, beside) as execs_ns:
                load_ns, unload_ns = [], []
                for _ in range(rig.samples(LOAD_SAMPLES)):
                    unload_ns.append(timed(model.close))
                    load_ns.append(timed(model.load))
            case = f"{name} {size / 1e6:.0f} MB" + (f" beside EXEC of {beside}" if beside else "")
            rate = size / _median(load_ns)
            of_ceiling = {"of ceiling": rate / rig.copy_gb_s} if rig.copy_gb_s else {}
            yield row("LOAD", case, load_ns, **{"GB/s": rate, **of_ceiling})
            yield row("UNLOAD", case, unload_ns)
            if beside:
                yield row("EXEC beside LOAD", f"{beside} batch 1", execs_ns)


def copies(rig: Rig) -> Iterator[Row]:
    """Measure INPUT and OUTPUT of a batch on their own lanes: alone, beside EXEC, and INPUT beside LOADs."""
    for name in rig.nets:
        other = next(net for net in rig.nets if net != name)
        for rows in (1, 16):
            model, slot = rig.staged(name, rows)
            inputs = rig.inputs(name, rows)
            for beside in (None, other):
                case = f"{name} batch {rows}" + (f" beside EXEC of {beside}" if beside else "")
                with busy(rig, beside):
                    input_ns = sampled(lambda: timed(lambda: model.stage(slot, inputs)), rig.samples(COPY_SAMPLES), 5)  # noqa: B023 (called here)
                    output_ns = sampled(lambda: timed(lambda: model.fetch(rows, slot)), rig.samples(COPY_SAMPLES), 5)  # noqa: B023
                yield row("INPUT", case, input_ns)
                yield row("OUTPUT", case, output_ns)
            with loading(rig.model(other)):
                input_ns = sampled(lambda: timed(lambda: model.stage(slot, inputs)), rig.samples(COPY_SAMPLES), 5)  # noqa: B023
            yield row("INPUT", f"{name} batch {rows} beside LOAD of {other}", input_ns)


@contextlib.contextmanager
def busy(rig: Rig, name: str | None) -> Iterator[list[int]]:
    """Run EXECs of `name` at batch 1 continuously in another thread. Yields the list of their device times."""
    times_ns: list[int] = []
    if name is None:
        yield times_ns
        return
    run = rig.runner(name, 1)
    with _repeated(lambda: times_ns.append(run())):
        yield times_ns


@contextlib.contextmanager
def loading(model: Any) -> Iterator[None]:
    """Run LOADs of a model continuously in another thread."""

    def reload() -> None:
        model.close()
        model.load()

    with _repeated(reload):
        yield


@contextlib.contextmanager
def _repeated(act: Callable[[], Any]) -> Iterator[None]:
    stop, failures = Event(), []

    def loop() -> None:
        try:
            while not stop.is_set():
                act()
        except BaseException as error:
            failures.append(error)

    thread = Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if failures:
        raise failures[0]


def _median(values: list[int]) -> float:
    return float(sorted(values)[len(values) // 2])
