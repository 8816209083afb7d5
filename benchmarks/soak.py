"""Ten times the capacity for half an hour, with everything switched on: memory, open files and goodput over time.

Requests arrive at Poisson times, a third each over the SDK, HTTP with JSON and HTTP with binary tensors. Connections
are new in each minute. The first third of the time is warm-up. The exit code is 1 if the resident memory of a process
grows by more than `MEMORY_SLOPE` after it, if a process gains more than `FILES` open files, if the goodput of a minute
differs from that of the fifth minute by more than `GOODPUT`, or if an answer is missing.

    python benchmarks/soak.py --json soak.json
    python benchmarks/soak.py --minutes 3 --split
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from bench.emulated_model import write_echo_model
from bench.horologe_server import Launch, start_horologe
from bench.report import end_with
from bench.runs import ScenarioRuns
from bench.server_metrics import memory_slope
from bench.targets import make_target
from bench.workload import load_scenario

if TYPE_CHECKING:
    from bench.horologe_server import RunningHorologe
    from bench.workload import Scenario
    from horologe_load.samples import LoadSummary

LOAD = 10
MEMORY_SLOPE, FILES, GOODPUT = 0.5, 4, 0.05
"""Bounds: MB per minute; open files, by the least number of each half, as a stall opens connections for a minute; share
of the goodput."""
CACHE = "8MiB"
"""Size of the prediction cache, so that it is full after the warm-up. The default would grow for 20 minutes."""
SAMPLE_S = 5.0
FIFTH_MINUTE = 4
EXEC_MS = {1: 10.0, 2: 19.0, 4: 36.0, 8: 70.0}
"""About 110 rows per second."""
MODEL_SETTINGS = 'slo = "100ms"\ncache = true\ncache_ttl = "1min"'


class ProcessSamples:
    """Resident memory and open files of each process over time, sampled by a thread until `stop`."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self.memory: dict[str, list[tuple[float, float]]] = {name: [] for name in pids}
        """(seconds, MB)."""
        self.files: dict[str, list[int]] = {name: [] for name in pids}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Start to sample."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            for name, process in self._processes.items():
                self.memory[name].append((time.monotonic(), process.memory_info().rss / 1e6))
                self.files[name].append(process.num_fds())

    def after_warm_up(self, share: float) -> dict[str, dict[str, float]]:
        """Return slope and range of memory, and the gain of open files, of each process after `share` of the time."""
        report = {}
        for name, samples in self.memory.items():
            later, files = samples[round(share * len(samples)) :], self.files[name]
            sizes = [size for _, size in later]
            report[name] = {
                "MB/min": memory_slope(later),
                "MB least": min(sizes),
                "MB most": max(sizes),
                "files gained": float(min(files[len(files) // 2 :]) - min(files[: len(files) // 2])),
            }
        return report


def measure(minutes: int, split: bool) -> dict[str, Any]:
    """Run the soak against a new system. Return what it did by minute and by process, and the violations."""
    scenario = load_scenario("emulated", {"model": "slow", "clients": (64,)})
    with tempfile.TemporaryDirectory() as folder:
        write_echo_model(Path(folder), "slow", 16, EXEC_MS, 8, MODEL_SETTINGS)
        launch = Launch(Path(folder), split=split, settings=(f"selector.cache_bytes={CACHE}",))
        with start_horologe(launch, "slow") as horologe:
            capacity = _sdk_runs(horologe, scenario).closed(64, 5.0).throughput
            samples = ProcessSamples(horologe.pids)
            samples.start()
            by_minute = [_send_minute(horologe, scenario, LOAD * capacity, minute) for minute in range(minutes)]
            samples.stop()
            alive = all(psutil.pid_exists(pid) for pid in horologe.pids.values())
    return _report(capacity, by_minute, samples.after_warm_up(1 / 3), alive)


def _sdk_runs(horologe: RunningHorologe, scenario: Scenario) -> ScenarioRuns:
    return ScenarioRuns(scenario, lambda inputs: make_target(horologe.ipc, "", scenario, inputs))


def _send_minute(horologe: RunningHorologe, scenario: Scenario, rate: float, minute: int) -> list[LoadSummary]:
    """Send a third of `rate` over each interface for a minute. Return a summary for each."""
    addresses = ((horologe.ipc, ""), (horologe.http, "oip-json-slo"), (horologe.http, "oip-binary-slo"))

    def send(number: int) -> LoadSummary:
        url, dialect = addresses[number]
        runs = ScenarioRuns(scenario, lambda inputs: make_target(url, dialect, scenario, inputs))
        return runs.open(rate / len(addresses), 60.0, seed=len(addresses) * minute + number)

    with ThreadPoolExecutor(len(addresses)) as pool:
        runs = list(pool.map(send, range(len(addresses))))
    goodput = sum(run.goodput for run in runs)
    print(f"minute {minute + 1}: {rate:.0f}/s offered, {goodput:.1f}/s in time", file=sys.stderr, flush=True)
    return runs


def _report(
    capacity: float, by_minute: list[list[LoadSummary]], processes: dict[str, dict[str, float]], alive: bool
) -> dict[str, Any]:
    goodput = [sum(run.goodput for run in runs) for runs in by_minute]
    fifth = goodput[min(FIFTH_MINUTE, len(goodput) - 1)]
    deviation = max(abs(rate / fifth - 1) for rate in goodput[FIFTH_MINUTE:] or goodput[-1:]) if fifth else np.inf
    runs = [run for runs in by_minute for run in runs]
    outcomes = {name: sum(getattr(run, name) for run in runs) for name in ("sent", "ok", "late", "refused", "failed")}
    outcomes["unanswered"] = sum(run.unanswered for run in runs)
    reasons: Counter[str] = Counter()
    for run in runs:
        reasons += Counter(run.reasons)
    return {
        "capacity": capacity,
        "goodput by minute": goodput,
        "outcomes": outcomes,
        "reasons": dict(reasons.most_common(10)),
        "processes": processes,
        "violations": {
            "memory": [name for name, row in processes.items() if row["MB/min"] > MEMORY_SLOPE],
            "open files": [name for name, row in processes.items() if row["files gained"] > FILES],
            "goodput": [f"{deviation:.1%} from the fifth minute"] if deviation > GOODPUT else [],
            "answers": [f"{outcomes['unanswered']} missing"] if outcomes["unanswered"] else [],
            "processes": [] if alive else ["a process has ended"],
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=int, default=30)
    parser.add_argument("--split", action="store_true", help="a process for each service")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result")
    arguments = parser.parse_args()
    result = measure(arguments.minutes, arguments.split)
    end_with(result, arguments.json)


if __name__ == "__main__":
    main()
