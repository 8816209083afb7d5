"""Send 10 queries per second to the pipeline `plates` for 20 s, 40 for 30 s, 5 for 90 s, and print how they end."""

from __future__ import annotations

import asyncio
import collections
import sys

import numpy as np

from horologe import AsyncClient, HorologeError

PHASES = ((10, 20), (40, 30), (5, 90))
"""Queries per second, and seconds."""


async def query(client: AsyncClient, outcomes: collections.Counter[str]) -> None:
    try:
        await client.predict("plates", np.ones((1, 1), np.float32))
        outcomes["OK"] += 1
    except HorologeError as error:
        outcomes[error.status.name] += 1


async def main() -> None:
    outcomes: collections.Counter[str] = collections.Counter()
    async with AsyncClient("tcp://127.0.0.1:8003") as client, asyncio.TaskGroup() as queries:
        for rate, seconds in PHASES:
            for _ in range(rate * seconds):
                queries.create_task(query(client, outcomes))
                await asyncio.sleep(1 / rate)
    sys.stdout.write(f"{dict(outcomes)}\n")


if __name__ == "__main__":
    asyncio.run(main())
