"""One model beyond the capacity of two devices, with execution times that vary: goodput and LATE.

    python benchmarks/varying_times.py

Simulated; medians of three seeds. Prints a table for experiments/results/schedulers.md. In a batch of 16 of `small
gain`, a row takes 0.75 of the time of a request alone, of `large gain` 0.38. `slow`: a device takes 1.6 times as long
for three half seconds.
"""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

from horologe_common.clock import ms, s
from horologe_sim.engine.noise import Noise
from horologe_sim.engine.simulated_faults import Fault
from horologe_sim.scenario.scenario import ModelEntry, Scenario
from horologe_sim.scenario.simulated_cluster import SimulatedCluster
from horologe_sim.scenario.workload import LoadPhase

GAINS = {
    "small gain": {1: 3.2, 2: 5.8, 4: 10.6, 8: 19.8, 16: 38.5},
    "large gain": {1: 2.61, 2: 3.78, 4: 5.61, 8: 9.13, 16: 15.67},
}
WORKERS, SECONDS, SEEDS = 2, 5, (1, 2, 3)
SLOW = tuple(
    Fault(s(1) + ms(1500) * number, f"worker/{number % WORKERS}", "slow", factor=1.6, for_ns=ms(500))
    for number in range(3)
)


class Outcome(NamedTuple):
    """Goodput as a part of the capacity; part of the requests that are late; median latency."""

    goodput: float
    late: float
    p50_ms: float


def play(exec_ms: dict[int, float], sigma: float, over: float, slow: bool, seed: int) -> Outcome:
    """Simulate `over` times the capacity for five seconds, after one to warm up."""
    capacity = WORKERS * 16_000 / exec_ms[16]
    scenario = Scenario(
        (ModelEntry("m", exec_ms, load_ms=2.0, slo_ns=ms(100)),),
        (LoadPhase(rate=over * capacity),),
        seed=seed,
        path="direct",
        workers=WORKERS,
        noise=Noise(sigma=sigma),
        faults=SLOW if slow else (),
        warmup_ns=s(1),
        duration_ns=s(1 + SECONDS),
    )
    cluster = SimulatedCluster(scenario)
    cluster.run()
    total = cluster.report().total
    return Outcome(total.ok / SECONDS / capacity, total.late / total.sent, total.p50_ms)


def main() -> None:
    print("| batches | sigma | load | goodput | LATE | p50 (ms) |")
    print("| --- | --- | --- | --- | --- | --- |")
    for label, exec_ms in GAINS.items():
        for sigma in (0.0, 0.1, 0.25):
            for over in (1.2, 2.0, 4.0):
                for slow in (False, True):
                    outcomes = [play(exec_ms, sigma, over, slow, seed) for seed in SEEDS]
                    goodput, late, p50_ms = (median(values) for values in zip(*outcomes, strict=True))
                    load = f"{over:g}" + (", slow" if slow else "")
                    print(f"| {label} | {sigma} | {load} | {goodput:.3f} | {late:.2%} | {p50_ms:.0f} |", flush=True)


if __name__ == "__main__":
    main()
