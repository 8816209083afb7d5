"""Attacks on a running system: latencies of a client without and beside each, memory, life of the processes."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec
import psutil

from bench.horologe_server import Launch, RunningHorologe, start_horologe
from bench.workload import ROOT
from bench_attacks.attack import Clock, Doors
from bench_attacks.good_client import RATE, Latencies, measure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.queues import Queue

    from bench_attacks.attack import Attack

MODEL = "digits-linear"
LATENCY_FACTOR, LONGEST_MS = 3.0, 500.0
SAMPLE_S = 0.05
SETTLE_S = 1.0
"""An attack has run for this long when the measurement beside it begins."""
PAUSE_S = 0.3
FIRST_BASELINE_S, BASELINE_S = 6.0, 1.5
"""Length of the measurements without an attack: at the begin for each door, and before each attack."""
OTHERS_GROWTH_MB = 32
"""Bound of the growth of every process but the edge: nothing that a client sends stays there."""
LEFT_MB = 24
"""A system of which a process has grown by more after an attack is replaced: later growth would be hidden."""


class ProcessMemory(msgspec.Struct):
    """Resident memory of a process in MB: before and after an attack, the largest during it, and its bound."""

    process: str
    before: float
    peak: float
    after: float
    bound: float


class Trial(msgspec.Struct):
    """Result of one attack. Times in milliseconds. `failures`: the bounds that do not hold, as sentences."""

    attack: str
    what: str
    sent: int
    p99_without: float
    p99_with: float
    longest_with: float
    failed: int
    reason: str
    memory: list[ProcessMemory]
    alive: bool
    failures: list[str]

    @property
    def ratio(self) -> float:
        """Return how many times as long the 99th percentile is beside the attack."""
        return self.p99_with / self.p99_without


class MemorySampler(threading.Thread):
    """Samples the resident memory of processes until `stop`. `before`, `peak` and `last` are in MB, by process."""

    def __init__(self, pids: dict[str, int]) -> None:
        super().__init__(daemon=True)
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._ended = threading.Event()
        self.last: dict[str, float] = {}
        self.peak: dict[str, float] = {}
        self.sample()
        self.before = dict(self.last)

    def sample(self) -> None:
        """Read the resident memory of each process. A process that has ended has 0."""
        for name, process in self._processes.items():
            try:
                size = process.memory_info().rss / 1e6
            except psutil.Error:
                size = 0.0
            self.last[name] = size
            self.peak[name] = max(size, self.peak.get(name, 0.0))

    def run(self) -> None:
        """Part of `Thread`."""
        while not self._ended.wait(SAMPLE_S):
            self.sample()

    def stop(self) -> None:
        """End the thread, after a last sample."""
        self._ended.set()
        self.join()
        self.sample()


class Trials:
    """Runs attacks one after the other on one system, which is replaced if an attack leaves memory behind."""

    def __init__(self) -> None:
        self._baselines: dict[str, list[Latencies]] = {}
        """Measurements without an attack, by door."""

    def run(self, attacks: Sequence[Attack], seconds: float) -> Iterator[Trial]:
        """Yield the result of each attack. Raises `RuntimeError` if the system does not start."""
        rest = list(attacks)
        while rest:
            settings = rest[0].settings
            with start_horologe(Launch(ROOT / "models", settings=settings), MODEL) as horologe:
                start = MemorySampler(horologe.pids).last
                while rest and rest[0].settings == settings:
                    trial = self._run_attack(horologe, rest.pop(0), seconds)
                    yield trial
                    left = max(part.after - start[part.process] for part in trial.memory)
                    if left > LEFT_MB or not trial.alive:
                        break

    def _run_attack(self, horologe: RunningHorologe, attack: Attack, seconds: float) -> Trial:
        doors = Doors(horologe.sdk, horologe.http, MODEL)
        baselines = self._baselines.setdefault(attack.door, [])
        measure(doors, attack.door, 0.2)
        baselines.append(measure(doors, attack.door, BASELINE_S if baselines else FIRST_BASELINE_S))
        without = sorted([ms for latencies in baselines for ms in latencies.ms])
        sampler = MemorySampler(horologe.pids)
        sampler.start()
        attacker = _Attacker(attack, doors, seconds)
        beside = measure(doors, attack.door, seconds - SETTLE_S)
        sent = attacker.join()
        time.sleep(PAUSE_S)
        afterwards = measure(doors, attack.door, PAUSE_S)
        sampler.stop()
        memory = [
            ProcessMemory(name, before, sampler.peak[name], sampler.last[name], before + _growth_mb(attack, name))
            for name, before in sampler.before.items()
        ]
        trial = Trial(
            attack.name,
            attack.what,
            sent,
            Latencies(without, 0, "").quantile(0.99),
            beside.quantile(0.99),
            beside.quantile(1.0),
            beside.failed,
            beside.reason,
            memory,
            all(sampler.last.values()) and len(afterwards.ms) >= RATE * PAUSE_S / 2,
            [],
        )
        trial.failures = list(_failures(trial))
        return trial


def _growth_mb(attack: Attack, process: str) -> int:
    return attack.growth_mb if process == "edge" else min(attack.growth_mb, OTHERS_GROWTH_MB)


def _failures(trial: Trial) -> Iterator[str]:
    """Return the bounds that do not hold."""
    if trial.sent <= 0:
        yield f"the attack sent {trial.sent} messages"
    if not trial.ratio <= LATENCY_FACTOR:
        yield f"p99 {trial.p99_with:.1f} ms is {trial.ratio:.1f} times {trial.p99_without:.1f} ms"
    if not trial.longest_with <= LONGEST_MS:
        yield f"longest {trial.longest_with:.0f} ms, {trial.failed} failed ({trial.reason[:60]})"
    for part in trial.memory:
        if part.peak > part.bound:
            yield f"{part.process} {part.peak:.0f} MB, bound {part.bound:.0f}"
    if not trial.alive:
        yield "a process has ended or does not answer"


class _Attacker:
    """An attack in a process of its own, which has been running for `SETTLE_S` when the constructor returns."""

    def __init__(self, attack: Attack, doors: Doors, seconds: float) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["bench_attacks"])
        self._sent: Queue[Any] = context.Queue()
        self._seconds = seconds
        self._process = context.Process(target=_attack, args=(attack.name, doors, seconds, self._sent), daemon=True)
        self._process.start()
        self._sent.get(timeout=30)
        time.sleep(SETTLE_S)

    def join(self) -> int:
        """Return the number of messages that the attack has sent. A stuck attack is killed and counts as -1."""
        try:
            with contextlib.suppress(Exception):
                return int(self._sent.get(timeout=self._seconds + 10))
            return -1
        finally:
            self._process.kill()
            self._process.join()


def _attack(name: str, doors: Doors, seconds: float, sent: Queue[Any]) -> None:
    from bench_attacks import ATTACKS, CONTROLS  # the child imports what the parent has chosen from

    sent.put("started")
    sent.put((ATTACKS | CONTROLS)[name].run(doors, Clock(time.monotonic() + seconds)))
