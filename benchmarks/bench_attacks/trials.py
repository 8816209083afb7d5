"""One attack on one system: latencies with and without it, resident memory, and whether the processes live."""

from __future__ import annotations

import multiprocessing
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec
import psutil

from bench.horologe_server import Launch, start_horologe
from bench.workload import ROOT
from bench_attacks.attack import Clock, Doors
from bench_attacks.good_client import RATE, measure

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

    from bench_attacks.attack import Attack

MODEL = "digits-linear"
LATENCY_FACTOR, LONGEST_MS = 3.0, 500.0
SAMPLE_S = 0.05
SETTLE_S = 1.0


class Trial(msgspec.Struct):
    """Result of one attack. Times in milliseconds, sizes in MB."""

    attack: str
    sent: int
    p99_without: float
    p99_with: float
    longest_with: float
    failed: int
    reason: str
    rss_before: dict[str, float]
    rss_peak: dict[str, float]
    rss_after: dict[str, float]
    growth_bound: float
    alive: bool

    @property
    def holds(self) -> bool:
        """Return whether latency, memory and life are within their bounds."""
        growth = max(self.rss_peak[name] - before for name, before in self.rss_before.items())
        in_time = self.p99_with <= LATENCY_FACTOR * self.p99_without and self.longest_with <= LONGEST_MS
        return self.alive and in_time and growth <= self.growth_bound


class MemorySampler(threading.Thread):
    """Samples the resident memory of processes until `stop`. `peak` and `last` are in MB, by process."""

    def __init__(self, pids: dict[str, int]) -> None:
        super().__init__(daemon=True)
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._ended = threading.Event()
        self.last: dict[str, float] = {}
        self.peak: dict[str, float] = {}
        self.sample()

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
        """End the thread."""
        self._ended.set()
        self.join()


def run_trial(attack: Attack, seconds: float) -> Trial:
    """Start a system, measure without the attack for a third of the time and at least 5 s, then beside it."""
    launch = Launch(ROOT / "models", settings=attack.settings)
    with start_horologe(launch, MODEL) as horologe:
        doors = Doors(horologe.sdk, horologe.http, MODEL)
        measure(doors, attack.door, 2.0)
        without = measure(doors, attack.door, max(5.0, seconds / 3))
        sampler = MemorySampler(horologe.pids)
        before = dict(sampler.last)
        sampler.start()
        attacker = _Attacker(attack, doors, seconds)
        beside = measure(doors, attack.door, seconds - SETTLE_S)
        sent = attacker.join()
        after_attack = measure(doors, attack.door, 1.0)
        sampler.stop()
        alive = all(sampler.last.values()) and len(after_attack.ms) >= RATE / 2
        return Trial(
            attack.name,
            sent,
            without.quantile(0.99),
            beside.quantile(0.99),
            beside.quantile(1.0),
            beside.failed,
            beside.reason,
            before,
            sampler.peak,
            sampler.last,
            attack.growth_mb,
            alive,
        )


class _Attacker:
    """An attack in a process of its own, which has been running for `SETTLE_S` when the constructor returns."""

    def __init__(self, attack: Attack, doors: Doors, seconds: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._sent: Queue[Any] = context.Queue()
        self._name = attack.name
        self._seconds = seconds
        self._process = context.Process(target=_attack, args=(attack.name, doors, seconds, self._sent), daemon=True)
        self._process.start()
        self._sent.get(timeout=30)
        time.sleep(SETTLE_S)

    def join(self) -> int:
        """Return the number of messages that the attack has sent. A stuck attack is killed and counts as -1."""
        try:
            return int(self._sent.get(timeout=self._seconds + 10))
        except Exception:
            return -1
        finally:
            self._process.kill()
            self._process.join()


def _attack(name: str, doors: Doors, seconds: float, sent: Queue[Any]) -> None:
    from bench_attacks import ATTACKS  # the child imports what the parent has chosen from

    sent.put("started")
    sent.put(ATTACKS[name].run(doors, Clock(time.monotonic() + seconds)))
