"""Batching strategies on the real services: the same requests of one row for each, through edge and worker."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from horologe_controller.settings import ControllerSettings
from horologe_experiments.live.batch_times import SIDE, write_models
from horologe_experiments.live.local_services import READY_S, changed_settings, local_services
from horologe_experiments.live.model_traffic import ModelTraffic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from horologe_experiments.live.batch_times import BatchTimes

STRATEGIES: dict[str, ControllerSettings] = {
    "none": ControllerSettings(scheduler="clipper"),
    "aimd": ControllerSettings(scheduler="clipper"),
    "quantile": ControllerSettings(scheduler="clipper", policy={"quantile_regression": True}),
    "horologe": ControllerSettings(),
}
"""Strategy -> settings. `none` has batches of one row. `horologe` is the default scheduler."""
DIGIT_WIDTH = 64


class LiveRuns(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Runs on the services."""

    models: tuple[str, ...]
    largest: int
    """Largest batch, a power of two."""
    loads: tuple[float, ...]
    """Offered rates, as multiples of what the largest batch within the SLO serves."""
    most_rate: float
    """Largest offered rate per second: the load generator shares the processor with the services."""
    warmup_s: float
    seconds: float
    """Measured time of a run."""


def run_live(
    runs: LiveRuns,
    times: Mapping[str, BatchTimes],
    slo_ms: float,
    seed: int,
    progress: Callable[[float, str], None],
) -> list[dict[str, Any]]:
    """Return a row for each model, load and strategy. All strategies are offered the same requests at a load.

    A load is left out if a lower one reaches `LiveRuns.most_rate`.
    """
    cases = [(name, load, strategy) for name in runs.models for load in _loads(runs, times[name], slo_ms)
             for strategy in STRATEGIES]  # fmt: skip
    rows = []
    for number, (name, load, strategy) in enumerate(cases):
        progress(number / len(cases), f"{name}, {strategy}, live")
        row = _run(runs, times[name], strategy, _rate(runs, times[name], load, slo_ms), slo_ms, seed)
        rows.append({"model": name, "load": load, "batching": strategy} | row)
    return rows


def _loads(runs: LiveRuns, model: BatchTimes, slo_ms: float) -> list[float]:
    """Return the lowest load of each distinct rate, ascending."""
    by_rate = {_rate(runs, model, load, slo_ms): load for load in sorted(runs.loads, reverse=True)}
    return sorted(by_rate.values())


def _rate(runs: LiveRuns, model: BatchTimes, load: float, slo_ms: float) -> float:
    """Return the requests per second that are offered at a load."""
    size = max(1, min(runs.largest, model.most_rows(slo_ms)))
    return min(load * model.rate(size), runs.most_rate)


def _run(runs: LiveRuns, model: BatchTimes, strategy: str, rate: float, slo_ms: float, seed: int) -> dict[str, Any]:
    """Start the services for one model, and offer the load."""
    import uvloop

    is_onnx = model.runtime == "onnx"
    largest = 1 if strategy == "none" else runs.largest
    sizes = [1 << bit for bit in range(largest.bit_length())]
    with tempfile.TemporaryDirectory() as folder:
        write_models(Path(folder), [model.name] * is_onnx, [model.name] * (not is_onnx), sizes)
        with local_services(folder, changed_settings("controller", STRATEGIES[strategy])) as house:
            house.wait_ready(READY_S)
            return uvloop.run(
                _offer(house.topology.clients[0], house.topology.keys or "", runs, model, rate, slo_ms, seed)
            )


async def _offer(
    endpoint: str, keys: str, runs: LiveRuns, model: BatchTimes, rate: float, slo_ms: float, seed: int
) -> dict[str, Any]:
    from horologe import AsyncClient

    width = DIGIT_WIDTH if model.runtime == "onnx" else SIDE * SIDE
    slo_ns = round(slo_ms * 1e6)
    async with AsyncClient(endpoint, keys=keys or None) as client:
        traffic = ModelTraffic(client, [model.name], slo_ns, width)
        rng = np.random.default_rng([seed, 5])
        requests = await traffic.send_poisson(rate, runs.warmup_s + runs.seconds, rng)
    counted = [request for request in requests if request.sent_ns >= runs.warmup_s * 1e9]
    took_ms = np.array([request.took_ns / 1e6 for request in counted if request.ok]) if counted else np.array([])
    p50, p99 = (round(float(np.quantile(took_ms, part)), 2) if took_ms.size else None for part in (0.5, 0.99))
    return {
        "offered": round(rate),
        "in_time": round(float((took_ms <= slo_ms).sum()) / runs.seconds, 1),
        "answered": round(took_ms.size / runs.seconds, 1),
        "p50_ms": p50,
        "p99_ms": p99,
    }
