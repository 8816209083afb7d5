"""A rolling restart of every service under load: how requests ended, and how long they took in each restart.

Two frontends, two selectors, a controller, two workers, profiler and tuner, each a process. They are restarted one
after the other. The exit code is 1 if any request ends otherwise than OK.

    python benchmarks/rolling.py
    python benchmarks/rolling.py --rate 100 --slo-ms 5000 --rounds 3 --json benchmarks/results/rolling.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from bench.emulated_model import write_echo_model
from bench.server_process import free_port
from bench.service_processes import ServiceProcesses, clients_of, one_of_each
from horologe import AsyncClient
from horologe_common.status import HorologeError

MODEL, CLIENTS, SETTLE_S, START_S = "echo", 4, 1.0, 60.0


class Load:
    """Open-loop load of several clients. `ends`: begin, status and duration of each request."""

    def __init__(self, endpoint: str, rate: float, slo_ms: float) -> None:
        self.ends: list[tuple[float, str, float]] = []
        self.reasons: Counter[str] = Counter()
        self._clients = [AsyncClient(endpoint) for _ in range(CLIENTS)]
        self._rate = rate
        self._slo_ms = slo_ms
        self._stopped = False

    async def wait_for_service(self) -> None:
        """Send requests until each client has an answer. Raises RuntimeError after `START_S`."""
        end_s = time.monotonic() + START_S
        for number in range(CLIENTS):
            while not self.ends or self.ends[-1][1] != "OK":
                if time.monotonic() > end_s:
                    raise RuntimeError(f"no service: {self.reasons}")
                await self._ask(number)
            self.ends.clear()
        self.reasons.clear()

    async def run(self) -> None:
        """Send requests until `stop`, and wait for their answers."""
        tasks, number, begin_s = [], 0, time.monotonic()
        while not self._stopped:
            number += 1
            await asyncio.sleep(max(0.0, begin_s + number / self._rate - time.monotonic()))
            tasks.append(asyncio.create_task(self._ask(number)))
        await asyncio.gather(*tasks)
        for client in self._clients:
            await client.close()

    def stop(self) -> None:
        self._stopped = True

    async def _ask(self, number: int) -> None:
        values = np.full((1, 4), number, np.float32)
        begin_s, status = time.monotonic(), "OK"
        try:
            answer = await self._clients[number % CLIENTS].predict(MODEL, values, slo_ms=self._slo_ms)
            if not np.array_equal(answer, values):
                status = "WRONG"
        except HorologeError as error:
            status = error.status.name
            self.reasons[f"{status}: {error.reason}"] += 1
        self.ends.append((begin_s, status, time.monotonic() - begin_s))

    def summary(self, begin_s: float, end_s: float) -> dict[str, Any]:
        """Return how the requests ended that were sent in this time, and their durations in milliseconds."""
        ends = [(status, took_s) for sent_s, status, took_s in self.ends if begin_s <= sent_s < end_s]
        took_ms = np.array([took_s for _, took_s in ends]) * 1e3
        p50, longest = (float(np.median(took_ms)), float(took_ms.max())) if ends else (0.0, 0.0)
        counts = Counter(status for status, _ in ends)
        return {"ends": counts, "p50_ms": round(p50, 1), "longest_ms": round(longest, 1)}


async def measure(folder: Path, rate: float, slo_ms: float, rounds: int) -> tuple[list[dict[str, Any]], Counter[str]]:
    """Return a row for each restart, and the reasons of failures."""
    write_echo_model(folder / "models", MODEL, 4, {1: 1.0, 2: 1.5, 4: 2.5, 8: 4.0}, 3.0)
    rows = []
    with ServiceProcesses(folder, one_of_each(folder, free_port())) as processes:
        await asyncio.to_thread(processes.wait_ready)
        load = Load(clients_of(folder), rate, slo_ms)
        await load.wait_for_service()
        running = asyncio.create_task(load.run())
        times = []
        for name in list(processes.services) * rounds:
            await asyncio.sleep(SETTLE_S)
            begin_s = time.monotonic()
            times.append((name, begin_s, await asyncio.to_thread(processes.restart, name)))
        await asyncio.sleep(SETTLE_S)
        load.stop()
        await running
        for at, (name, begin_s, (stopped_s, started_s)) in enumerate(times):
            end_s = times[at + 1][1] if at + 1 < len(times) else time.monotonic()
            row = {"service": name, "drain_s": round(stopped_s, 2), "start_s": round(started_s, 2)}
            rows.append(row | load.summary(begin_s, end_s))
        logs = [line for name in processes.services for line in processes.read_log(name).splitlines()]
        for line in logs:
            if " fault" in line or "aborted" in line:
                load.reasons[line] += 1
    return rows, load.reasons


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=100.0, help="requests per second")
    parser.add_argument("--slo-ms", type=float, default=5000.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows, reasons = asyncio.run(measure(Path(folder), options.rate, options.slo_ms, options.rounds))
    for row in rows:
        print(f"{row['service']:12} drain {row['drain_s']:5.2f} s  start {row['start_s']:5.2f} s  "
              f"p50 {row['p50_ms']:7.1f} ms  longest {row['longest_ms']:7.1f} ms  {dict(row['ends'])}")  # fmt: skip
    for reason, count in reasons.most_common(20):
        print(f"{count:5} {reason}")
    if options.json:
        document = {"rate": options.rate, "slo_ms": options.slo_ms, "rows": rows, "reasons": reasons}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    sys.exit(any(set(row["ends"]) - {"OK"} for row in rows))


if __name__ == "__main__":
    main()
