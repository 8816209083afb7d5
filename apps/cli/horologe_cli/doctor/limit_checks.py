"""Names the part of a running system that limits it: frontend, selector, controller, worker or device.

Reads the metrics of the processes that `horologe up` has started with its default ports, twice.
"""

from __future__ import annotations

import re
import time
import urllib.request
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from horologe_cli.doctor.finding import Finding, graded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

FIRST_PORT, FURTHER_PORTS = 8002, range(8020, 8084)
SAMPLE_S, TIMEOUT_S, PAGE_BYTES = 1.0, 0.5, 16 << 20
BUSY = 0.7
"""Above this part of a core or of a device, requests wait for one another."""
HINTS = {
    "edge": "horologe up --frontends 2: one core parses, checks and plans all requests",
    "frontend": "one more frontend (--frontends); clients should keep several connections",
    "selector": "one more selector (docs/scaling-out.md): caches, applications and pipelines take its time",
    "controller": "several systems, each with a part of the models (docs/scaling-out.md)",
    "worker": "larger batches or fewer, larger requests: the event loop of a worker moves inputs and outputs",
    "device": "more workers or devices, or larger batches (docs/operators/sizing.md)",
}
SERVICE = re.compile(r'^horologe_build_info\{[^}]*service="(\w+)"', re.MULTILINE)
CPU = re.compile(r"^process_cpu_seconds_total(?:\{[^}]*\})? (\S+)", re.MULTILINE)
EXEC = re.compile(r'^horologe_lane_busy_seconds_total\{[^}]*lane="exec"[^}]*\} (\S+)', re.MULTILINE)


class Usage(NamedTuple):
    """What a process has used since its start, in seconds."""

    service: str
    cpu_s: float
    exec_s: float = 0.0
    """Busy time of the EXEC lanes of a worker."""


def check_limit(
    read: Callable[[], Mapping[str, Usage]] | None = None, sleep: Callable[[float], None] = time.sleep
) -> Iterator[Finding]:
    """Name the busiest part of the running system. Yields nothing if no process serves metrics."""
    read = read or (lambda: dict(read_usages((FIRST_PORT, *FURTHER_PORTS))))
    before, begin_s = read(), time.monotonic()
    if not before:
        return
    sleep(SAMPLE_S)
    after, seconds = read(), time.monotonic() - begin_s
    shares = busy_shares(before, after, max(seconds, SAMPLE_S))
    if not shares:
        return
    part = max(shares, key=lambda name: shares[name])
    found = ", ".join(f"{name} {share:.0%}" for name, share in sorted(shares.items(), key=lambda item: -item[1]))
    yield graded("limit", shares[part] < BUSY, f"{part}: busy {found}", HINTS.get(part, ""))


def busy_shares(before: Mapping[str, Usage], after: Mapping[str, Usage], seconds: float) -> dict[str, float]:
    """Return the busy part of each kind of process, of the busiest one, and of the devices on average.

    The CPU time of a worker beyond its EXEC lanes is that of its event loop and of the other lanes.
    """
    shares: dict[str, float] = {}
    devices: list[float] = []
    for address, now in after.items():
        if (then := before.get(address)) is None or then.service != now.service or now.cpu_s < then.cpu_s:
            continue
        cpu, executing = (now.cpu_s - then.cpu_s) / seconds, (now.exec_s - then.exec_s) / seconds
        if now.service == "worker":
            devices.append(min(1.0, executing))
            cpu = max(0.0, cpu - executing)
        shares[now.service] = max(shares.get(now.service, 0.0), cpu)
    if devices:
        shares["device"] = sum(devices) / len(devices)
    return {name: share for name, share in shares.items() if name in HINTS}


def read_usages(ports: Iterable[int]) -> Iterator[tuple[str, Usage]]:
    """Yield address and usage of each process that serves metrics at one of these ports of this machine."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for port in ports:
        with suppress(OSError, ValueError):
            with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=TIMEOUT_S) as response:
                text = response.read(PAGE_BYTES).decode()
            yield f"127.0.0.1:{port}", parse_usage(text)


def parse_usage(text: str) -> Usage:
    """Return the usage in a page of metrics. Raises ValueError for that of another program."""
    service, cpu = SERVICE.search(text), CPU.search(text)
    if service is None or cpu is None:
        raise ValueError("not a process of Horologe")
    return Usage(service[1], float(cpu[1]), sum(map(float, EXEC.findall(text))))
