"""CPU time of the edge for a request, with an open console and without, in turns of the same server.

    python benchmarks/console.py --rate 5000 --seconds 10 --rounds 6
    python benchmarks/console.py --sdk --json console.json

Each round measures both, in alternating order. The ratio of a round compares its two halves, so slow changes of the
machine cancel out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import httpx

from bench.horologe_server import Launch, RunningHorologe, start_horologe
from bench.runs import ScenarioRuns
from bench.targets import make_target
from bench.workload import ROOT, load_scenario

if TYPE_CHECKING:
    from collections.abc import Iterator


class Half(NamedTuple):
    """A measurement with or without a console."""

    console: bool
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


def measure_half(running: RunningHorologe, runs: ScenarioRuns, rate: float, seconds: float, console: bool) -> Half:
    """Offer `rate` requests per second, with a console or without."""
    counts = [0, 0]

    def run() -> Half:
        before = running.cpu_times()["edge"].total_s
        load = runs.open(rate, seconds, seed=1)
        used_s = running.cpu_times()["edge"].total_s - before
        answered = load.ok + load.refused
        return Half(console, answered, load.in_time, 1e6 * used_s / max(1, answered), *counts)

    if not console:
        return run()
    with open_console(running.http, counts):
        half = run()
    return half._replace(events=counts[0], event_bytes=counts[1])


def measure(rate: float, seconds: float, rounds: int, sdk: bool) -> list[tuple[Half, Half]]:
    """Return (without, with) of each round."""
    scenario = load_scenario("noop")
    with start_horologe(Launch(ROOT / "models", profiler=False), "noop") as running:
        url = running.ipc if sdk else running.http
        runs = ScenarioRuns(scenario, lambda inputs: make_target(url, "oip-binary-slo", scenario, inputs))
        runs.open(rate, seconds, seed=2)  # warm-up
        pairs = []
        for number in range(rounds):
            order = (False, True) if number % 2 == 0 else (True, False)
            halves = {console: measure_half(running, runs, rate, seconds, console) for console in order}
            pairs.append((halves[False], halves[True]))
            plain, watched = pairs[-1]
            print(
                f"round {number + 1}: {plain.edge_us:.1f} us/request without, {watched.edge_us:.1f} us with a console "
                f"({watched.edge_us / plain.edge_us - 1:+.1%}), {plain.answered} and {watched.answered} answers, "
                f"{watched.events} events of {watched.event_bytes / max(1, watched.events) / 1000:.1f} kB",
                flush=True,
            )
        return pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=5000.0, help="offered requests per second")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each half of a round")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--sdk", action="store_true", help="SDK over a Unix socket instead of HTTP")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    pairs = measure(options.rate, options.seconds, options.rounds, options.sdk)
    ratios = sorted(watched.edge_us / plain.edge_us for plain, watched in pairs)
    print(f"median {statistics.median(ratios) - 1:+.2%}, rounds from {ratios[0] - 1:+.2%} to {ratios[-1] - 1:+.2%}")
    if options.json:
        options.json.write_text(json.dumps([[half._asdict() for half in pair] for pair in pairs], indent=1))


if __name__ == "__main__":
    main()
