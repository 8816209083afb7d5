"""Send the rates of plans on shares, and print the predicted time of a batch beside the observed latencies.

Usage: python load.py plan.json [SECONDS]
"""

import asyncio
import json
import sys
import time
from pathlib import Path

import numpy as np

from horologe import AsyncClient, HorologeError


async def send(client: AsyncClient, plan: dict, until_s: float, latencies_ms: list[float]) -> None:
    """Send requests of one workload at a steady rate. A request that fails or is refused has an infinite latency."""

    async def request() -> None:
        begin_s = time.perf_counter()
        try:
            await client.predict(plan["name"], np.ones((1, 1), np.float32))
            latencies_ms.append(1e3 * (time.perf_counter() - begin_s))
        except HorologeError:
            latencies_ms.append(float("inf"))

    async with asyncio.TaskGroup() as requests:
        while time.perf_counter() < until_s:
            requests.create_task(request())
            await asyncio.sleep(1 / plan["rate"])


async def main(plans: list[dict], seconds: float) -> None:
    """Send the requests of all workloads for some seconds, and print a row for each."""
    latencies_ms = [[] for _ in plans]
    until_s = time.perf_counter() + seconds
    async with AsyncClient("tcp://127.0.0.1:8003") as client, asyncio.TaskGroup() as senders:
        for plan, own in zip(plans, latencies_ms, strict=True):
            senders.create_task(send(client, plan, until_s, own))
    columns = ("workload", "share", "batch ms", "P50 ms", "P99 ms", "SLO ms", "in time", "requests/s")
    rows = [columns]
    for plan, own in zip(plans, latencies_ms, strict=True):
        slo_ms, share = plan["slo_ns"] / 1e6, plan["placements"][0]
        p50, p99 = np.quantile(own, (0.5, 0.99), method="higher")
        in_time, rate = np.mean(np.array(own) <= slo_ms), len(own) / seconds
        times = (f"{value:.1f}" for value in (share["latency_ns"] / 1e6, p50, p99, slo_ms))
        rows.append((plan["name"], f"{share['percent']:g}%", *times, f"{in_time:.2%}", f"{rate:.1f}"))
    sys.stdout.writelines("".join(f"{cell:>12}" for cell in row) + "\n" for row in rows)


asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())["plans"], float(sys.argv[2]) if len(sys.argv) > 2 else 30.0))
