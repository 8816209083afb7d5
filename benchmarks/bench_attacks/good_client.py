"""The client beside an attack: requests at a constant rate, latencies counted from their due times."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from horologe import AsyncClient
from horologe_common.status import HorologeError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from bench_attacks.attack import Doors

RATE = 50.0
TIMEOUT_S = 2.0


class Latencies(NamedTuple):
    """Latencies of the answers in milliseconds, sorted, and the number of requests without an OK answer."""

    ms: list[float]
    failed: int
    reason: str
    """Reason of the last failure."""

    def quantile(self, part: float) -> float:
        """Return a quantile in milliseconds; infinity without an answer. A failed request counts as the longest."""
        total = len(self.ms) + self.failed
        index = min(total - 1, int(part * total))
        return self.ms[index] if 0 <= index < len(self.ms) else float("inf")


def measure(doors: Doors, door: str, seconds: float) -> Latencies:
    """Send `RATE` requests per second through a door. Return their latencies."""
    return asyncio.run(_measure(doors, door, seconds))


async def _measure(doors: Doors, door: str, seconds: float) -> Latencies:
    ask, close = await (_open_sdk(doors) if door == "sdk" else _open_http(doors))
    latencies, failures = [], []

    async def request(due_s: float) -> None:
        try:
            await asyncio.wait_for(ask(), TIMEOUT_S)
            latencies.append((time.monotonic() - due_s) * 1e3)
        except (HorologeError, OSError, TimeoutError, ValueError, asyncio.IncompleteReadError) as error:
            failures.append(f"{type(error).__name__}: {error}")

    tasks, begin_s = [], time.monotonic()
    for number in range(int(seconds * RATE)):
        due_s = begin_s + number / RATE
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        tasks.append(asyncio.create_task(request(due_s)))
    await asyncio.gather(*tasks)
    await close()
    return Latencies(sorted(latencies), len(failures), failures[-1] if failures else "")


async def _open_sdk(doors: Doors) -> tuple[Callable[[], Awaitable[Any]], Callable[[], Awaitable[None]]]:
    client, image = AsyncClient(doors.sdk), np.zeros((1, 64), np.float32)
    await client.predict(doors.model, image, timeout=10)

    async def ask() -> Any:
        return await client.predict(doors.model, image, timeout=TIMEOUT_S)

    return ask, client.close


async def _open_http(doors: Doors) -> tuple[Callable[[], Awaitable[Any]], Callable[[], Awaitable[None]]]:
    """Return a request over a pool of persistent connections, with JSON of one row."""
    host, _, port = doors.http.removeprefix("http://").partition(":")
    tensor = f'{{"name":"image","datatype":"FP32","shape":[1,64],"data":[{",".join(["0.5"] * 64)}]}}'
    body = f'{{"inputs":[{tensor}],"parameters":{{"timeout":{TIMEOUT_S * 1e6:.0f}}}}}'.encode()
    head = f"POST /v2/models/{doors.model}/infer HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask() -> Any:
        reader, writer = idle.pop() if idle else await asyncio.open_connection(host, int(port))
        try:
            writer.write(head.encode() + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(answer.partition("content-length:")[2].partition("\r\n")[0])
            content = await reader.readexactly(length)
        except BaseException:
            writer.close()
            raise
        idle.append((reader, writer))
        if answer[9:12] != "200":
            raise ValueError(content.decode(errors="replace"))

    async def close() -> None:
        for _, writer in idle:
            writer.close()

    return ask, close
