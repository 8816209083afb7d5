"""CPU time of the edge for a request, with an open console or a Prometheus and without, in turns of the same server.

    python benchmarks/console.py --rate 5000 --seconds 10 --rounds 6
    python benchmarks/console.py --sdk --json console.json
    python benchmarks/console.py --scrape

Each round measures both, in alternating order. The ratio of a round compares its two halves, so slow changes of the
machine cancel out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import httpx

from bench.horologe_server import Launch, RunningHorologe, start_horologe
from bench.runs import ScenarioRuns
from bench.targets import make_target
from bench.workload import ROOT, load_scenario

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Watched = Callable[[list[int]], AbstractContextManager[None]]

SCRAPE_S = 5.0
"""Interval of deploy/prometheus/prometheus.yml."""


class Half(NamedTuple):
    """A measurement, watched by a console or a Prometheus or not."""

    watched: bool
    answered: int
    in_time: int
    edge_us: float
    """CPU time of the edge for each answered request, in microseconds."""
    events: int
    event_bytes: int


@contextmanager
def open_console(url: str, counts: list[int]) -> Iterator[None]:
    """Read the console's events in a thread until the context ends. `counts`: number of events and of bytes."""
    stopped, begun = threading.Event(), threading.Event()

    def read() -> None:
        with httpx.stream("GET", f"{url}/console/events", timeout=10) as response:
            for part in response.iter_raw():
                begun.set()
                counts[0] += part.count(b"\n\n")
                counts[1] += len(part)
                if stopped.is_set():
                    return

    thread = threading.Thread(target=read)
    thread.start()
    begun.wait(10)
    try:
        yield
    finally:
        stopped.set()
        thread.join()


@contextmanager
def scrape(url: str, counts: list[int]) -> Iterator[None]:
    """Read the metrics every `SCRAPE_S` in a thread until the context ends. `counts`: number of pages and of bytes."""
    stopped = threading.Event()

    def read() -> None:
        while True:
            counts[0] += 1
            counts[1] += len(httpx.get(url, timeout=10).content)
            if stopped.wait(SCRAPE_S):
                return

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def measure_half(
    running: RunningHorologe, runs: ScenarioRuns, rate: float, seconds: float, watched: Watched | None
) -> Half:
    """Offer `rate` requests per second, watched or not."""
    counts = [0, 0]

    def run() -> Half:
        before = running.cpu_times()["edge"].total_s
        load = runs.open(rate, seconds, seed=1)
        used_s = running.cpu_times()["edge"].total_s - before
        answered = load.ok + load.refused
        return Half(watched is not None, answered, load.in_time, 1e6 * used_s / max(1, answered), *counts)

    if watched is None:
        return run()
    with watched(counts):
        half = run()
    return half._replace(events=counts[0], event_bytes=counts[1])


def measure(rate: float, seconds: float, rounds: int, sdk: bool, scraped: bool) -> list[tuple[Half, Half]]:
    """Return (without, with) of each round."""
    scenario = load_scenario("noop")
    with start_horologe(Launch(ROOT / "models", profiler=False), "noop") as running:
        url = running.ipc if sdk else running.http
        runs = ScenarioRuns(scenario, lambda inputs: make_target(url, "oip-binary-slo", scenario, inputs))
        runs.open(rate, seconds, seed=2)  # warm-up
        watched = partial(scrape, running.metrics["edge"]) if scraped else partial(open_console, running.http)
        pairs = []
        for number in range(rounds):
            order = (None, watched) if number % 2 == 0 else (watched, None)
            plain, other = sorted(measure_half(running, runs, rate, seconds, each) for each in order)
            pairs.append((plain, other))
            print(
                f"round {number + 1}: {plain.edge_us:.1f} us/request without, {other.edge_us:.1f} us watched "
                f"({other.edge_us / plain.edge_us - 1:+.1%}), {plain.answered} and {other.answered} answers, "
                f"{other.events} events or pages of {other.event_bytes / max(1, other.events) / 1000:.1f} kB",
                flush=True,
            )
        return pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=5000.0, help="offered requests per second")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each half of a round")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--sdk", action="store_true", help="SDK over a Unix socket instead of HTTP")
    parser.add_argument("--scrape", action="store_true", help="read the metrics instead of the console")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    pairs = measure(options.rate, options.seconds, options.rounds, options.sdk, options.scrape)
    ratios = sorted(watched.edge_us / plain.edge_us for plain, watched in pairs)
    print(f"median {statistics.median(ratios) - 1:+.2%}, rounds from {ratios[0] - 1:+.2%} to {ratios[-1] - 1:+.2%}")
    if options.json:
        options.json.write_text(json.dumps([[half._asdict() for half in pair] for pair in pairs], indent=1))


if __name__ == "__main__":
    main()
