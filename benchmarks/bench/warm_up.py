"""Mixed traffic before every measurement, and a report of what the server has learned from it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import uvloop

from bench.server_metrics import sum_by_label
from horologe import AsyncClient
from horologe_load.mixed_traffic import dynamic_models, send_mixed_traffic

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Sequence

    from bench.horologe_server import RunningHorologe
    from horologe_common.models import ModelSpec

LEARN_S, QUICK_LEARN_S = 120.0, 20.0
"""Seconds of mixed traffic before a measurement, and with --quick."""
SETTLE_S = 5.0
BURSTS = """
import time, random
while True:
    end = time.monotonic() + random.uniform(0.05, 0.5)
    while time.monotonic() < end:
        pass
    time.sleep(random.uniform(0.05, 0.5))
"""


@contextlib.contextmanager
def busy_neighbour(wanted: bool = True) -> Iterator[None]:
    """Run a program beside the server that uses one core in bursts of 50 to 500 ms, half of the time."""
    child = subprocess.Popen([sys.executable, "-c", BURSTS]) if wanted else None
    try:
        yield
    finally:
        if child:
            child.kill()
            child.wait()


def warm_up(name: str, server: RunningHorologe, seconds: float, models: Sequence[str] = ()) -> None:
    """Send mixed traffic to `models` (empty: all) for `seconds`, then print which models are dynamic."""
    show = sys.stderr.isatty()

    async def send() -> Counter[str]:
        async with AsyncClient(server.sdk) as client:
            specs = [state.spec for state in await client.models() if state.state == "READY"]
            chosen: list[ModelSpec] = [spec for spec in specs if not models or spec.name in models]
            return await send_mixed_traffic(client, server.http, chosen, seconds, on_phase)

    def on_phase(text: str, share: float) -> None:
        if show:
            print(f"\r  {name}: {share:4.0%} {text:<40}", end="", file=sys.stderr, flush=True)

    outcomes = uvloop.run(send())
    wait_until_settled(server)
    pages = server.metric_pages()
    counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    print(f"{chr(13) * show}  {name}: {seconds:.0f} s of mixed traffic: {counts}", file=sys.stderr)
    measured = sum_by_label(pages, "horologe_profiler_runs_total", "model")
    print(
        f"  {name}: the profiler measured {sum(measured.values()):.0f} samples of {len(measured)} models",
        file=sys.stderr,
    )
    print(f"  {name}: dynamic: {describe_dynamic(dynamic_models(pages))}", file=sys.stderr)


def describe_dynamic(dynamic: dict[str, bool] | None) -> str:
    """Return the names of the dynamic models."""
    if dynamic is None:
        return "not reported by this revision"
    return ", ".join(sorted(key for key, value in dynamic.items() if value)) or "none"


def wait_until_settled(server: RunningHorologe) -> None:
    """Wait until the profiler has no samples to run, at most `SETTLE_S`: they would run beside the next measurement."""
    end = time.monotonic() + SETTLE_S
    while time.monotonic() < end and sum(_queued(server)) > 0:
        time.sleep(0.1)


def _queued(server: RunningHorologe) -> list[float]:
    lines = server.metric_page("profiler").splitlines()
    return [float(line.split()[1]) for line in lines if line.startswith("horologe_profiler_queued_samples ")]
