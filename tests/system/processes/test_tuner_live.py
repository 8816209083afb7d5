"""A pipeline over emulated workers as processes: a spike and a drop of its traffic, and no query is lost."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest

from harness.model_folders import a_folder
from harness.pipeline_folders import CHAIN, write_pipelines
from harness.running_services import RunningServices
from horologe import AsyncClient, Client
from horologe_common.clock import ms, s
from horologe_common.status import HorologeError
from horologe_experiments.live.local_services import apply_plan
from horologe_load.arrivals import gamma
from horologe_planning.envelope import envelope_of, window_lengths
from horologe_planning.plan import Placement, Plan

if TYPE_CHECKING:
    from pathlib import Path

MANIFEST = """batch_sizes = [1, 2, 4]
inputs = [{{ name = "x", datatype = "FP32", shape = [-1, 1] }}]
outputs = [{{ name = "y", datatype = "FP32", shape = [-1, 1] }}]
[emulated]
exec_ms = {{ 1 = {0}, 2 = {1}, 4 = {2} }}
load_ms = 3
"""
SLO_MS = 5_000
BASE, SPIKE, DROP = 8.0, 30.0, 2.0
"""Queries per second."""
STEPS = ((BASE, 10), (SPIKE, 14), (DROP, 48))
"""Rates and seconds. Scaling down follows the highest rate of the last 30 s (`DOWN_SPAN_NS`)."""
LONGEST_NS = s(15)
"""Longest window of the envelope. Nothing is scaled down while a window exceeds the plan's rate."""
PATIENCE_S = 60.0


def a_plan() -> Plan:
    """Return a plan for the base rate, with a sample trace of its own."""
    windows = window_lengths(ms(100), LONGEST_NS)
    envelope = envelope_of(gamma(BASE, 1.0, 300, 7), windows)
    stages = (Placement("a", "a", "v100", 4, throughput=20.0), Placement("b", "b", "v100", 4, throughput=30.0))
    return Plan("chain", ms(SLO_MS), BASE, stages, envelope)


async def send_queries(endpoint: str, arrivals: list[float]) -> Counter[str]:
    """Send one query at each time, in seconds from the start, and count the outcomes."""
    outcomes: Counter[str] = Counter()

    async def send(client: AsyncClient, at_s: float, start_s: float) -> None:
        await asyncio.sleep(start_s + at_s - time.monotonic())
        try:
            await client.predict("chain", np.ones((1, 1), np.float32), slo_ms=SLO_MS)
            outcomes["OK"] += 1
        except HorologeError as error:
            outcomes[error.status.name] += 1

    async with AsyncClient(endpoint) as client:
        start_s = time.monotonic() + 0.2
        await asyncio.gather(*(send(client, at_s, start_s) for at_s in arrivals))
    return outcomes


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_spike_and_a_drop_lose_no_query(tmp_path: Path) -> None:
    for name, times in (("a", (40, 60, 100)), ("b", (30, 45, 80))):
        a_folder(tmp_path / "models", name, MANIFEST.format(*times))
    write_pipelines(tmp_path / "models" / "pipelines", {"chain": CHAIN}, slo="5s", datatype="FP32")
    arrivals, begin_s = [], 0.0
    for seed, (rate, seconds) in enumerate(STEPS):
        arrivals += [begin_s + at_ns / 1e9 for at_ns in gamma(rate, 1.0, seconds, seed)]
        begin_s += seconds
    sets = ("worker.pages_bytes=64MiB", "tuner.demand=relative", "tuner.settle_ns=2s")
    with RunningServices(tmp_path, *sets, tuner=True) as system, Client(system.endpoint) as client:
        apply_plan(client, a_plan(), PATIENCE_S)
        outcomes = asyncio.run(send_queries(system.endpoint, arrivals))
        status = client.tune("status")
    events = [entry["event"] for entry in reversed(status["journal"])]
    assert set(outcomes) == {"OK"}
    assert "scaled up" in events
    assert events[-1] == "scaled down"
    assert status["plans"][0]["replicas"] == {"a": 1, "b": 1}
