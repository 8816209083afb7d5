"""Effect of a pipeline's driver on others: latencies of a model and of a pipeline, alone and beside it.

    python benchmarks/driver_isolation.py
    python benchmarks/driver_isolation.py --rounds 3 --requests 60 --only loops,raises

In each round, the model and the good pipeline are measured alone and beside each hostile driver in turn, one request at
a time. Two queries of the hostile pipeline are in flight meanwhile. The exit code is 1 if the median over the rounds of
a delay (the 95th percentile beside the driver minus the one alone) exceeds `BOUND_MS`, if a request of the others
fails, or if the edge is started again. The machine needs an idle core for the driver: a driver that loops uses one.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from horologe import Client
from horologe_common.status import HorologeError
from horologe_experiments.live.local_services import READY_S, local_services, write_emulated
from horologe_sim.report.tables import Table
from horologe_sim.scenario.scenario import ModelEntry

if TYPE_CHECKING:
    from collections.abc import Iterator

BOUND_MS = 10.0
MODEL, GOOD = "model", "good"
SLO_MS = 5_000.0
PAUSE_S = 0.005
HOSTILE_SLO_MS = 300.0
IN_FLIGHT = 2
GOOD_DRIVER = """
async def run(call, inputs):
    return await call("model", inputs)
"""
HOSTILE_BODIES = {
    "loops": "while True: pass",
    "blocks": "import time; time.sleep(1)",
    "computes": "sum(range(30_000_000))",
    "raises": "raise ValueError('no')",
    "leaks": "held = []\n    while True: held.append(bytearray(1 << 24))",
    "ends": "import os; os._exit(3)",
    "waits": "import asyncio; await asyncio.sleep(3600)",
}
"""`computes` is one C call, which no signal interrupts."""
TABLE = """
[{name}]
slo = "5s"
inputs = [{{name = "x", datatype = "FP32", shape = [-1, 1]}}]
outputs = [{{name = "y", datatype = "FP32", shape = [-1, 1]}}]
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=80, help="requests of each kind per round")
    parser.add_argument("--only", default=",".join(HOSTILE_BODIES), help="hostile drivers, separated by commas")
    options = parser.parse_args()
    names = options.only.split(",")
    with tempfile.TemporaryDirectory() as folder:
        write_emulated(Path(folder), [ModelEntry(MODEL, {1: 1.0, 2: 1.5, 4: 2.5, 8: 4.0})])
        write_drivers(Path(folder, "pipelines"), names)
        with local_services(folder, [f"worker.cache={folder}/.cache"]) as system:
            system.wait_ready(READY_S)
            endpoint = system.topology.clients[0]
            delays = measure(endpoint, names, options.rounds, options.requests)
            restarts = system.supervisor.restarts()
    raise SystemExit(report(delays, restarts.get("edge", 0)))


def write_drivers(folder: Path, names: list[str]) -> None:
    """Write the good pipeline and the hostile ones."""
    folder.mkdir()
    (folder / "pipeline.toml").write_text("".join(TABLE.format(name=name) for name in (GOOD, *names)))
    (folder / f"{GOOD}.py").write_text(GOOD_DRIVER)
    for name in names:
        body = f"async def run(call, inputs):\n    {HOSTILE_BODIES[name]}\n    return inputs\n"
        (folder / f"{name}.py").write_text(body)


def measure(endpoint: str, names: list[str], rounds: int, requests: int) -> dict[tuple[str, str], list[float]]:
    """Return the delay in milliseconds of each round, by hostile driver and what it delayed."""
    delays: dict[tuple[str, str], list[float]] = {}
    with Client(endpoint) as client:
        wait_until_served(client)
        for _ in range(rounds):
            for name in names:
                alone = {target: p95_ms(client, target, requests) for target in (MODEL, GOOD)}
                with hostile_queries(endpoint, name):
                    for target, before_ms in alone.items():
                        delays.setdefault((name, target), []).append(p95_ms(client, target, requests) - before_ms)
    return delays


def wait_until_served(client: Client) -> None:
    """Return after the good pipeline's first answer."""
    end_s = time.monotonic() + READY_S
    while True:
        try:
            client.predict(GOOD, np.ones((1, 1), np.float32), slo_ms=SLO_MS)
            return
        except HorologeError:
            if time.monotonic() > end_s:
                raise
            time.sleep(PAUSE_S)


def p95_ms(client: Client, target: str, requests: int) -> float:
    """Return the 95th percentile of the latencies of `requests` requests, each after the answer to the one before."""
    took_ms = []
    for _ in range(requests):
        begin_s = time.monotonic()
        client.predict(target, np.ones((1, 1), np.float32), slo_ms=SLO_MS)
        took_ms.append((time.monotonic() - begin_s) * 1e3)
        time.sleep(PAUSE_S)
    return float(np.quantile(took_ms, 0.95))


@contextmanager
def hostile_queries(endpoint: str, name: str) -> Iterator[None]:
    """Keep `IN_FLIGHT` queries of a hostile pipeline in flight, whatever becomes of them."""
    ended = threading.Event()

    def send() -> None:
        with Client(endpoint) as client:
            while not ended.is_set():
                try:
                    client.predict(name, np.ones((1, 1), np.float32), slo_ms=HOSTILE_SLO_MS)
                except HorologeError:
                    ended.wait(PAUSE_S)

    threads = [threading.Thread(target=send, daemon=True) for _ in range(IN_FLIGHT)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def report(delays: dict[tuple[str, str], list[float]], restarts: int) -> int:
    """Print a table, and return the exit code."""
    table = Table(("driver", "delayed", "median of the rounds", "largest round", "wanted"), left=2)
    medians = {}
    for (name, target), rounds in delays.items():
        medians[name, target] = statistics.median(rounds)
        table.add_row(name, target, f"{medians[name, target]:.1f} ms", f"{max(rounds):.1f} ms", f"<= {BOUND_MS:g} ms")
    print(table.text())
    print(f"edge started again: {restarts} times")
    return int(restarts > 0 or max(medians.values()) > BOUND_MS)


if __name__ == "__main__":
    main()
