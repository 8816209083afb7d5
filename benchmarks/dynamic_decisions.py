"""Measure the cost of decisions for dynamic models: CPU time of the controller's core per served request.

    python benchmarks/dynamic_decisions.py

Half of the requests add 1.5 ms to a batch, half add 8 ms. Their application tells which. The SLO is 100 ms. The four
devices are overloaded at `RATE`, so that the most urgent requests have little time, as in the costliest decisions. The
CPU time is measured as in decisions.py.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bench import report
from decisions import WARMUP_S, CaseRun, measure_run
from horologe_common.clock import ms, s
from horologe_common.distribution import Distribution
from horologe_common.models import ModelSpec, Profile, TensorSpec
from horologe_common.wire import ModelReport
from horologe_controller.core.runtime_distributions import RuntimeDistributions, SoloDistribution
from horologe_controller.settings import ControllerSettings
from horologe_experiments.harness.experiment_world import ExperimentWorld, WorldRecords
from horologe_experiments.harness.interval_ledger import IntervalLedger
from horologe_sim.controller_only.controller_world import ClusterSettings
from horologe_sim.controller_only.request_load import Chunk, DynamicRequest
from horologe_sim.engine.noise import NOISES
from horologe_sim.engine.simulated_device import SimModel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

DEVICES, MODELS = 4, (16, 64, 128)
RATE = 600.0
"""Requests per second. The devices execute 0.55 of that one by one, and more in batches."""
BAR_US = 150
BASE_NS, SIZES = ms(7), (1, 2, 4, 8, 16)
ROW_MS = {"chat": 1.5, "mail": 8.0}
"""Mean time that a row adds to a batch, by application. The standard deviation is a sixth of it."""


class DynamicRow(NamedTuple):
    """A row of the result; the field names are the columns."""

    scheduler: str
    models: int
    served: int
    satisfaction: float
    rows_a_batch: float
    us_per_served: float


def run(models: int, scheduler: str, seconds: int, seed: int) -> CaseRun:
    """Run `models` equal dynamic models on four devices, and measure as `run`."""
    rng, total_ns = np.random.default_rng(seed), s(WARMUP_S + seconds)
    count = int(RATE * (WARMUP_S + seconds))
    applications = np.where(rng.random(count) < 0.5, "chat", "mail").tolist()
    chunk = Chunk(
        np.sort(rng.integers(0, total_ns, count)).tolist(),
        rng.integers(0, models, count).tolist(),
        [ms(100)] * count,
        [0] * count,
        [DynamicRequest(int(_draw_solos(name, rng, 1)[0]), name) for name in applications],
    )
    setting = ClusterSettings(
        devices=DEVICES,
        noise=NOISES["none"],
        controller=ControllerSettings(scheduler=scheduler, margin_ns=ms(0.1)),
    )
    ledger = IntervalLedger(["all"], models, total_ns, s(WARMUP_S))
    served = [_dynamic_model(number) for number in range(models)]
    world = ExperimentWorld(setting, served, ledger, seed, [chunk], records=WorldRecords(clock=time.thread_time_ns))
    parts = [SoloDistribution(name, 0, Distribution.from_samples(_draw_solos(name, rng, 500))) for name in ROW_MS]
    for model in served:
        distributions = RuntimeDistributions(BASE_NS, parts)
        world.controller.cluster.distributions[model.report.spec.key] = distributions
    return measure_run(world, total_ns)


def _draw_solos(application: str, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Draw execution times alone, in ns."""
    mean_ms = ROW_MS[application]
    return BASE_NS + 1e6 * np.maximum(0.2, rng.normal(mean_ms, mean_ms / 6, count))


def _dynamic_model(number: int) -> SimModel:
    tensors = (TensorSpec("x", "FP32", (-1, 1)),)
    spec = ModelSpec(f"text-{number}", "1", "emulated", tensors, tensors, SIZES, weights_bytes=1 << 20)
    profile = Profile({size: BASE_NS + size * ms(5) for size in SIZES}, ms(1))
    return SimModel(ModelReport(spec, profile), base_ns=BASE_NS)


def measure(options: argparse.Namespace) -> Iterator[DynamicRow]:
    """Measure each number of dynamic models with `horologe`, and with the schedulers to compare it with."""
    for scheduler in ("horologe", "orloj", "clockwork"):
        for models in MODELS:
            result = run(models, scheduler, options.seconds, options.seed)
            cost_us = round(result.cpu_ns / 1000 / max(1, result.served), 1)
            rows_a_batch = round(result.rows_a_batch, 2)
            yield DynamicRow(scheduler, models, result.served, round(result.satisfaction, 4), rows_a_batch, cost_us)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=5, help="virtual time after a warm-up of 2 s")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    machine = report.describe_machine()
    rows = list(measure(options))
    print(report.markdown(DynamicRow._fields, rows))
    if options.json:
        report.save_json(options.json, {"machine": machine, "rows": [row._asdict() for row in rows]})
    cost_us = rows[0].us_per_served
    holds = cost_us <= BAR_US
    print(f"\n{rows[0].models} dynamic models: {cost_us} us, wanted <= {BAR_US}: {'yes' if holds else 'NO'}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
