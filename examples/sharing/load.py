"""Send the rates of a sharing plan, and print the predicted time of a batch beside the observed latencies.

Usage: python load.py plan.json [SECONDS]
"""

import asyncio
import json
import sys
import time
from pathlib import Path

import numpy as np

from horologe import AsyncClient, HorologeError


async def send(client: AsyncClient, share: dict, until_s: float, latencies_ms: list[float]) -> None:
    """Send requests of one share at a steady rate. A request that fails or is refused has an infinite latency."""

    async def request() -> None:
        begin_s = time.perf_counter()
        try:
            await client.predict(share["workload"], np.ones((1, 1), np.float32))
            latencies_ms.append(1e3 * (time.perf_counter() - begin_s))
        except HorologeError:
            latencies_ms.append(float("inf"))

    async with asyncio.TaskGroup() as requests:
        while time.perf_counter() < until_s:
            requests.create_task(request())
            await asyncio.sleep(1 / share["rate"])


async def main(plan: dict, seconds: float) -> None:
    """Send the requests of all shares for some seconds, and print a row for each share."""
    shares = [share for gpu in plan["gpus"] for share in gpu["placements"]]
    latencies_ms = [[] for _ in shares]
    until_s = time.perf_counter() + seconds
    async with AsyncClient("tcp://127.0.0.1:8003") as client, asyncio.TaskGroup() as senders:
        for share, own in zip(shares, latencies_ms, strict=True):
            senders.create_task(send(client, share, until_s, own))
    columns = ("workload", "share", "batch ms", "P50 ms", "P99 ms", "SLO ms", "in time", "requests/s")
    rows = [columns]
    for share, own in zip(shares, latencies_ms, strict=True):
        p50, p99 = np.quantile(own, (0.5, 0.99), method="higher")
        in_time, rate = np.mean(np.array(own) <= share["slo_ms"]), len(own) / seconds
        times = (f"{value:.1f}" for value in (share["latency_ms"], p50, p99, share["slo_ms"]))
        rows.append((share["workload"], f"{share['share_percent']:g}%", *times, f"{in_time:.2%}", f"{rate:.1f}"))
    sys.stdout.writelines("".join(f"{cell:>12}" for cell in row) + "\n" for row in rows)


asyncio.run(
    main(json.loads(Path(sys.argv[1]).read_text())["sharing_plan"], float(sys.argv[2]) if len(sys.argv) > 2 else 30.0)
)
