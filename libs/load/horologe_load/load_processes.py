"""Processes that generate load. Each has an event loop, connections and a share of the requests of its own."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import time
from collections import Counter
from contextlib import suppress
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from horologe_common.status import Lost, describe_exception
from horologe_load.load_loops import closed_loop, open_loop
from horologe_load.samples import Samples, no_garbage_collection

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from multiprocessing.connection import Connection
    from types import TracebackType

    from horologe_load.model_server import LoadedModel

CONNECT_NS = 500_000_000
"""Time to open connections: all processes start a run so long after it was requested, or when their own are open."""
PROGRESS_S = 0.25


class Load(NamedTuple):
    """A run. `arrivals`: times of an open loop in nanoseconds. Without arrivals, a closed loop of `clients`."""

    arrivals: Sequence[int] = ()
    clients: int = 0
    seconds: float = 0.0

    def split(self, count: int) -> list[Load]:
        """Divide the run among so many processes. Those without a request are left out."""
        if self.clients:
            shares = [self.clients // count + (number < self.clients % count) for number in range(count)]
            return [self._replace(clients=clients) for clients in shares if clients]
        parts = [self.arrivals[number::count] for number in range(count)]
        return [self._replace(arrivals=part) for part in parts if len(part)]


class LoadRun(NamedTuple):
    """The requests of a run in the order of their due times, and what the generator used for it."""

    samples: Samples
    seconds: float
    """Time in which requests were sent (closed loop: until the last answer)."""
    cpu: tuple[float, ...]
    """CPU time of each process per second of the run, in cores."""
    cached: int = 0
    held_back: int = 0
    """See `ServerTarget`."""


class _Part(NamedTuple):
    """What a process measured, as arrays."""

    due_ns: Any
    sent_ns: Any
    done_ns: Any
    outcomes: Any
    reasons: Counter[str]
    seconds: float
    cpu: float
    cached: int
    held_back: int


class LoadProcesses:
    """Starts `count` processes that send requests to a model, for any number of runs. Use it as a context manager."""

    def __init__(self, model: LoadedModel, count: int = 1) -> None:
        self._model = model
        self._count = count
        self._children: list[tuple[Any, Connection]] = []

    def __enter__(self) -> LoadProcesses:
        context = multiprocessing.get_context("spawn")
        for _ in range(self._count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, self._model), daemon=True)
            process.start()
            theirs.close()
            self._children.append((process, ours))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process, pipe in self._children:
            pipe.close()
            process.terminate()
            process.join()

    def run(self, load: Load, on_progress: Callable[[int], None] = lambda answered: None) -> LoadRun:
        """Generate the load and wait for the answers. `on_progress` gets the number of answered requests so far.

        Raises Lost if the server cannot be reached, or a process has died.
        """
        start_ns = time.monotonic_ns() + CONNECT_NS
        parts = load.split(self._count)
        waiting = [pipe for (_, pipe), _ in zip(self._children, parts, strict=False)]
        for pipe, part in zip(waiting, parts, strict=True):
            pipe.send((part, start_ns))
        answered: dict[Connection, int] = {}
        results: list[_Part] = []
        while waiting:
            for pipe in cast("list[Connection]", wait(waiting)):
                try:
                    message = pipe.recv()
                except EOFError:
                    raise Lost("a process that generates load has died") from None
                if isinstance(message, int):
                    answered[pipe] = message
                    on_progress(sum(answered.values()))
                elif isinstance(message, str):
                    raise Lost(message)
                else:
                    waiting.remove(pipe)
                    results.append(message)
        return _merge(results, closed=bool(load.clients))


def _merge(parts: list[_Part], closed: bool) -> LoadRun:
    samples, reasons = Samples(), Counter[str]()
    due_ns = np.concatenate([part.due_ns for part in parts]) if parts else np.zeros(0, np.int64)
    order = np.argsort(due_ns, kind="stable")
    for name in ("due_ns", "sent_ns", "done_ns", "outcomes"):
        columns = [getattr(part, name) for part in parts] or [due_ns]
        setattr(samples, name, np.concatenate(columns)[order].tolist())
    for part in parts:
        reasons += part.reasons
    samples.reasons = reasons
    seconds = max((part.seconds for part in parts), default=0.0)
    if closed and parts:  # the processes do not start at the same time
        seconds = (max(samples.done_ns) - samples.due_ns[0]) / 1e9
    return LoadRun(
        samples,
        seconds,
        tuple(part.cpu for part in parts),
        sum(part.cached for part in parts),
        sum(part.held_back for part in parts),
    )


def _event_loop() -> Callable[[Coroutine[Any, Any, _Part]], _Part]:
    """Return what runs a coroutine: uvloop if it is installed, else asyncio."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run
    return cast("Callable[[Coroutine[Any, Any, _Part]], _Part]", uvloop.run)


def _serve(pipe: Connection, model: LoadedModel) -> None:
    """Run what the parent sends until its end of the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    run = _event_loop()
    with suppress(EOFError, BrokenPipeError):
        while True:
            load, start_ns = pipe.recv()
            try:
                result: _Part | str = run(_generate(pipe, model, load, start_ns))
            except (OSError, TimeoutError) as error:
                result = f"{model.server.endpoint}: {describe_exception(error)}"
            pipe.send(result)


class _Reporter:
    """Sends the number of answers to the parent, and adds up the CPU time while requests are sent."""

    def __init__(self, pipe: Connection, samples: Samples) -> None:
        self._pipe, self._samples = pipe, samples
        self._cpu_ns = self._wall_ns = 0

    @property
    def cpu(self) -> float:
        """Return the CPU time per second, in cores; 0 for a run shorter than `PROGRESS_S`."""
        return self._cpu_ns / self._wall_ns if self._wall_ns else 0.0

    async def run(self) -> None:
        now_ns, cpu_ns, sent = time.monotonic_ns(), time.process_time_ns(), 0
        while True:
            await asyncio.sleep(PROGRESS_S)
            last_ns, last_cpu_ns, last_sent = now_ns, cpu_ns, sent
            now_ns, cpu_ns, sent = time.monotonic_ns(), time.process_time_ns(), len(self._samples.outcomes)
            if sent > last_sent:
                self._wall_ns += now_ns - last_ns
                self._cpu_ns += cpu_ns - last_cpu_ns
            self._pipe.send(sent - self._samples.in_flight)


async def _generate(pipe: Connection, model: LoadedModel, load: Load, start_ns: int) -> _Part:
    samples, target = Samples(), model.make_target()
    reporter = _Reporter(pipe, samples)
    reporting = asyncio.create_task(reporter.run())
    try:
        with no_garbage_collection():
            if load.clients:
                seconds = await closed_loop(target, samples, load.clients, load.seconds)
            else:
                seconds = await open_loop(target, samples, load.arrivals, not_before_ns=start_ns)
        cached, held_back = target.cached, target.held_back
    finally:
        reporting.cancel()
        await target.stop()
    due_ns, sent_ns, done_ns = (
        np.array(column, np.int64) for column in (samples.due_ns, samples.sent_ns, samples.done_ns)
    )
    outcomes = np.array(samples.outcomes, np.int8)
    return _Part(due_ns, sent_ns, done_ns, outcomes, samples.reasons, seconds, reporter.cpu, cached, held_back)
