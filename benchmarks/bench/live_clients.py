"""Clients that share devices, on real processes: open loops over the SDK, closed loops over HTTP."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import uvloop

from bench.client_points import LOOPS, PARTS, WORKERS, Point, Result, full_batch_rate, judge
from bench.emulated_model import write_echo_model
from bench.horologe_server import Launch, start_horologe
from bench.server_metrics import sum_by_label
from bench.targets import HttpScenarioTarget
from bench.warm_up import warm_up
from bench.workload import Inputs, Scenario, Tensor
from horologe import AsyncClient
from horologe_load.arrivals import poisson
from horologe_load.load_loops import closed_loop, open_loop
from horologe_load.samples import ClientOutcome, Samples, no_garbage_collection
from horologe_load.targets import ModelInput, SdkTarget

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.horologe_server import RunningHorologe

WIDTH = 4
MOST_PER_S = 1_600.0
"""Capacity from which two cores are busy with the load generator and the edge."""
POINTS = (
    (0.01, 20.0, 0.9, "two"), (1.0, 50.0, 1.25, "ten"), (5.0, 20.0, 1.25, "small"), (5.0, 100.0, 1.25, "loops"),
    (5.0, 400.0, 0.9, "ten"), (20.0, 50.0, 1.25, "two"), (20.0, 400.0, 1.25, "loops"), (20.0, 400.0, 2.0, "small"),
    (20.0, 1000.0, 1.25, "ten"), (80.0, 400.0, 1.25, "two"), (200.0, 1000.0, 1.25, "small"),
    (200.0, 1000.0, 2.0, "loops"),
)  # fmt: skip
SETTLE_S = 2.0


def measure_points(seconds: float, warm_up_s: float, seed: int) -> Iterator[dict[str, Any]]:
    """Start the system once, send mixed traffic to all models, and yield the figures of each point."""
    with tempfile.TemporaryDirectory() as folder:
        for batch_ms in sorted({point[0] for point in POINTS}):
            exec_ms = {size: part * batch_ms for size, part in PARTS.items()}
            write_echo_model(Path(folder), model_name(batch_ms), WIDTH, exec_ms, load_ms=3.0)
        with start_horologe(Launch(Path(folder), WORKERS)) as server:
            warm_up("clients", server, warm_up_s)
            for batch_ms, slo_ms, load, mix in POINTS:
                point = Point(batch_ms, slo_ms, load, mix, full_batch_rate(batch_ms, MOST_PER_S))
                alone = uvloop.run(measure(server, point, seconds, seed, as_one=True))
                yield judge(point, alone, uvloop.run(measure(server, point, seconds, seed)))


def model_name(batch_ms: float) -> str:
    """Return the name of the model with this batch time."""
    return f"batch-{batch_ms:g}".replace(".", "-")


async def measure(server: RunningHorologe, point: Point, seconds: float, seed: int, as_one: bool = False) -> Result:
    """Return what the clients get. `as_one`: one connection of the SDK sends the load of all open loops."""
    demands = point.demands()
    rates = {"one": sum(demands.values())} if as_one else {name: rate for name, rate in demands.items() if rate}
    before = batch_counts(server, point)
    with no_garbage_collection():
        runs = [send_open(server, point, rate, seconds, seed + number) for number, rate in enumerate(rates.values())]
        loops = [send_loops(server, point, seconds)] if point.mix == "loops" and not as_one else []
        results = await asyncio.gather(*runs, *loops)
    await asyncio.sleep(SETTLE_S)
    batches, rows = (after - first for after, first in zip(batch_counts(server, point), before, strict=True))
    names = list(rates) + ["loops"] * len(loops)
    served = {
        name: samples.outcomes.count(ClientOutcome.OK) / seconds for name, samples in zip(names, results, strict=True)
    }
    outcomes = [outcome for samples in results for outcome in samples.outcomes]
    return Result(served, rows / max(1.0, batches), 1 - outcomes.count(ClientOutcome.OK) / max(1, len(outcomes)))


def batch_counts(server: RunningHorologe, point: Point) -> tuple[float, float]:
    """Return the number of batches of the model and of their rows so far."""
    pages, model = server.metric_pages(), model_name(point.batch_ms)
    names = "horologe_batch_rows_count", "horologe_batch_rows_sum"
    count, rows = (sum_by_label(pages, name, "model").get(model, 0.0) for name in names)
    return count, rows


async def send_open(server: RunningHorologe, point: Point, rate: float, seconds: float, seed: int) -> Samples:
    """Send Poisson arrivals over a connection of the SDK."""
    samples, rng = Samples(), np.random.default_rng(seed)
    rows = rng.random((4096, 1, WIDTH), np.float32)
    async with AsyncClient(server.sdk) as client:
        target = SdkTarget(
            client,
            lambda index: ModelInput(model_name(point.batch_ms), rows[index % len(rows)]),
            round(point.slo_ms * 1e6),
        )
        await open_loop(target, samples, poisson(rate, seconds, seed))
    return samples


async def send_loops(server: RunningHorologe, point: Point, seconds: float) -> Samples:
    """Keep a request in flight on each of some HTTP connections."""
    tensor = Tensor("x", "FP32", (1, WIDTH)), Tensor("y", "FP32", (1, WIDTH))
    model = model_name(point.batch_ms)
    scenario = Scenario(
        model=model, repository="", input=tensor[0], output=tensor[1], slo_ms=point.slo_ms, unchecked=True
    )
    url, samples = f"{server.http}/v2/models/{model}/infer", Samples()
    target = HttpScenarioTarget(url, "oip-binary-slo", scenario, Inputs(scenario), LOOPS)
    try:
        await closed_loop(target, samples, LOOPS, seconds)
    finally:
        await target.stop()
    return samples
