"""The runs of `horologe bench`: one load, or a search for the capacity, and what they say."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from horologe_load.arrivals import constant, spread
from horologe_load.capacity_search import STRIKES, CapacitySearch, Confirmation
from horologe_load.estimates import Estimate, estimate_quantile, estimate_share
from horologe_load.load_processes import Load, LoadProcesses, LoadRun
from horologe_load.samples import ClientOutcome, LoadSummary, summarize

if TYPE_CHECKING:
    from collections.abc import Callable

    OnProgress = Callable[[str, float], None]

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
MAX_LAG_MS = 1.0
MAX_LAG_SHARE = 0.1
"""The generator is a limit if its delay exceeds both `MAX_LAG_MS` and this share of the latency, each at the 99th
percentile."""
MAX_CPU = 0.9
"""The generator is a limit if a process uses more of a core."""
PRECISION = 1.01
MAX_TRIALS = 30
RETREAT = 0.99
PROBE_CLIENTS, PROBE_S = 16, 1.5
FIRST_RATE = 0.5
"""First rate of the search, as a share of the throughput of `PROBE_CLIENTS` clients."""
IDLE_S, IDLE_PROBES = 0.2, 50
HISTOGRAM_MAX_US = 3_600_000_000


class BenchLoad(msgspec.Struct, frozen=True):
    """The load to offer: one of `rate`, `arrivals` of a trace, `clients`, or a search for the capacity."""

    seconds: float
    slo_ms: float = 0.0
    rate: float = 0.0
    even: bool = False
    """Equal distances instead of Poisson arrivals."""
    arrivals: tuple[int, ...] = ()
    clients: int = 0
    seed: int = 1
    wanted: float = 0.99
    """Share of the requests to answer in time."""

    def at_rate(self, rate: float, seconds: float = 0.0) -> Load:
        """Return the open loop at this rate in requests per second."""
        seconds = seconds or self.seconds
        return Load(constant(rate, seconds) if self.even else spread(rate, seconds, self.seed), seconds=seconds)

    @property
    def single(self) -> Load:
        """Return the load of a run that is no search."""
        if self.arrivals:
            return Load(self.arrivals, seconds=self.arrivals[-1] / 1e9)
        return Load(clients=self.clients, seconds=self.seconds) if self.clients else self.at_rate(self.rate)


class BenchRun(msgspec.Struct, frozen=True):
    """A run: counts, estimates with 95% intervals, and the generator."""

    summary: LoadSummary
    attainment: Estimate
    latency_ms: dict[str, Estimate]
    """Of answers with status OK, by percentile."""
    cpu: tuple[float, ...]
    """CPU time of each generator process, in cores."""
    limits: list[str]
    """Why the generator was the limit. Empty: it was not."""
    hdr_histogram: str | None
    """Latencies in microseconds in the compressed format of HdrHistogram. None: the package hdrhistogram is missing."""


class BenchTrial(msgspec.Struct, frozen=True):
    """A trial of the search for the capacity."""

    rate: float
    attained: float
    limited: bool
    """The generator was the limit."""


class BenchResult(msgspec.Struct, frozen=True):
    """What `horologe bench` found. `run`: the run, or the confirmation of the capacity."""

    run: BenchRun | None
    capacity: float | None = None
    """Highest rate at which the wanted share was in time, in requests per second. None: not searched, or none found."""
    failed: float | None = None
    """Lowest rate at which it was not."""
    trials: list[BenchTrial] = []

    @property
    def limits(self) -> list[str]:
        """Return why the generator was the limit, also of trials that failed."""
        found = list(self.run.limits) if self.run else []
        if limited := [trial for trial in self.trials if trial.limited and trial.rate == self.failed]:
            found.append(f"the generator was the limit at {limited[0].rate:,.1f}/s, where the search stopped")
        return found


def evaluate(run: LoadRun, slo_ms: float, rate: float) -> BenchRun:
    """Estimate attainment and percentiles of a run. Raises ValueError if it has no requests."""
    samples = run.samples
    summary = summarize(samples, max(run.seconds, 1e-9), slo_ms, rate, run.cached)
    latency_ns = np.array(samples.done_ns, np.int64) - np.array(samples.due_ns, np.int64)
    answered = np.array(samples.outcomes, np.int8) == ClientOutcome.OK
    in_time = answered & (latency_ns <= (slo_ms * 1e6 if slo_ms else np.inf))
    latencies = latency_ns[answered]
    return BenchRun(
        summary,
        estimate_share(in_time),
        {name: _milliseconds(estimate_quantile(latencies, share)) for name, share in PERCENTILES.items()}
        if len(latencies)
        else {},
        run.cpu,
        find_limits(summary, run),
        _encode_histogram(latencies),
    )


def _milliseconds(estimate: Estimate) -> Estimate:
    low, high = (None if bound is None else bound / 1e6 for bound in (estimate.low, estimate.high))
    return Estimate(estimate.value / 1e6, low, high)


def find_limits(summary: LoadSummary, run: LoadRun) -> list[str]:
    """Return why the generator, and not the server, may have decided the figures of a run."""
    limits = []
    if summary.delay_p99_ms > max(MAX_LAG_MS, MAX_LAG_SHARE * summary.p99_ms):
        limits.append(f"requests left {summary.delay_p99_ms:.1f} ms after their planned time (p99)")
    if busy := [cpu for cpu in run.cpu if cpu > MAX_CPU]:
        limits.append(f"a generator process used {max(busy):.0%} of a core")
    if run.held_back:
        limits.append(f"{run.held_back:,} requests waited for one of the generator's connections")
    return limits


def _encode_histogram(latencies_ns: np.ndarray[tuple[int], np.dtype[np.int64]]) -> str | None:
    try:
        from hdrh.histogram import HdrHistogram
    except ImportError:
        return None
    histogram = HdrHistogram(1, HISTOGRAM_MAX_US, 3)
    values, counts = np.unique(np.maximum(1, latencies_ns // 1000), return_counts=True)
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        histogram.record_value(min(value, HISTOGRAM_MAX_US), count)
    encoded: bytes = histogram.encode()
    return encoded.decode()


class Bench:
    """Offers load to a model through generator processes. `on_progress(text, share)` is called meanwhile."""

    def __init__(self, processes: LoadProcesses, load: BenchLoad, on_progress: OnProgress) -> None:
        self._processes = processes
        self._load = load
        self._on_progress = on_progress

    def run(self) -> BenchResult:
        """Offer the load once."""
        return BenchResult(self._offer(self._load.single, self._load.rate, "", 0.0, 1.0))

    def _offer(self, load: Load, rate: float, text: str, begin: float, end: float) -> BenchRun:
        planned = len(load.arrivals)
        start_s = time.monotonic()

        def on_progress(answered: int) -> None:
            passed_s = time.monotonic() - start_s
            share = min(1.0, passed_s / max(load.seconds, 1e-9))
            of = f" of {planned:,}" if planned else f", {answered / passed_s:,.0f}/s"
            self._on_progress(f"{text}{answered:,}{of} answered", begin + share * (end - begin))

        return evaluate(self._processes.run(load, on_progress), self._load.slo_ms, rate)

    def search(self) -> BenchResult:
        """Search the highest rate whose requests are in time, then measure it for twice as long.

        The rate is reduced by 1% and more while the longer run fails. The search ends early if the server has not
        recovered from a trial after `IDLE_PROBES` probes.
        """
        load, trials = self._load, list[BenchTrial]()
        probe = self._offer(Load(clients=PROBE_CLIENTS, seconds=PROBE_S), 0.0, "first rate: ", 0.0, 0.05)
        first = FIRST_RATE * probe.summary.throughput
        search = CapacitySearch(first, MAX_TRIALS, precision=PRECISION, wanted=load.wanted)
        while (rate := search.next_rate()) is not None:
            begin = 0.05 + 0.85 * len(trials) / MAX_TRIALS
            step = self._offer(load.at_rate(rate), rate, f"{rate:,.1f}/s: ", begin, begin + 0.85 / MAX_TRIALS)
            trials.append(BenchTrial(rate, step.summary.attained, bool(step.limits)))
            search.observe(rate, step.summary.attained)
            if not self._wait_until_idle():
                break
        run = None
        confirmation = Confirmation(search.carried or 0.0, 6 if search.carried else 0, RETREAT, load.wanted)
        while (rate := confirmation.next_rate()) is not None:
            run = self._confirm(rate)
            confirmation.observe(run.summary.attained)
        return BenchResult(run, confirmation.confirmed, search.failed, trials)

    def _confirm(self, rate: float) -> BenchRun:
        """Offer the rate for twice as long, and once more if that fails: another program may have used the machine."""
        for _ in range(STRIKES):
            run = self._offer(
                self._load.at_rate(rate, 2 * self._load.seconds), rate, f"confirming {rate:,.1f}/s: ", 0.9, 1.0
            )
            self._wait_until_idle()
            if run.summary.attained >= self._load.wanted:
                break
        return run

    def _wait_until_idle(self) -> bool:
        """Wait until a lone request is within the SLO: requests of the last run must not delay those of the next.

        Return False if it never is.
        """
        for _ in range(IDLE_PROBES):
            samples = self._processes.run(Load(clients=1, seconds=IDLE_S)).samples
            probe = summarize(samples, IDLE_S, self._load.slo_ms)
            if probe.ok and probe.p99_ms <= self._load.slo_ms:
                return True
        return False
