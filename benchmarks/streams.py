"""Streams beside other requests, and cancelled streams, in the simulator: the real cores on simulated devices.

Two shared cores cannot carry the load of 64 devices, so devices and network are simulated. Requests of 10 ms with a
deadline of 100 ms take 0.7 of the devices' time. Beside them, 200 readers each keep a stream open, whose steps take 20
ms; the next step is asked for as soon as an item is read. The exit code is 1 if the share of requests in time falls by
more than 1%, if fewer than 99% of the gaps between items are within their deadline, or if a cancelled stream leaves
anything open.

    python benchmarks/streams.py                  # a minute and a half
    python benchmarks/streams.py --devices 16 --streams 50 --seconds 5
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from horologe_common.clock import ms, s
from horologe_common.status import Status
from horologe_frontend.settings import FrontendSettings
from horologe_sim.engine.noise import Noise
from horologe_sim.engine.simulated_readers import SimulatedReaders
from horologe_sim.scenario.scenario import ModelEntry, Scenario
from horologe_sim.scenario.simulated_cluster import SimulatedCluster
from horologe_sim.scenario.workload import LoadPhase

if TYPE_CHECKING:
    from collections.abc import Sequence

EXEC_MS, STEP_MS, FIRST_MS, SLO_MS = 10.0, 20.0, 40.0, 100.0
GAP_MS, ITEMS = 500.0, 50
WARMUP_S = 1.0
LOSS, GAPS_IN_TIME = 0.01, 0.99


def simulate(options: argparse.Namespace, readers: int, load: float, cancel_after: int = 0) -> dict[str, Any]:
    """Run the load and the readers. Return the figures, and what is open afterwards."""
    scenario = Scenario(
        models=(
            ModelEntry("unary", {1: EXEC_MS}, slo_ns=ms(SLO_MS)),
            ModelEntry("text", {1: STEP_MS, 2: FIRST_MS}, items=ITEMS, first_item_ns=s(2), gap_ns=ms(GAP_MS)),
        ),
        load=(LoadPhase(rate=load * options.devices * 1000 / EXEC_MS, models=("unary",)),) if load else (),
        duration_ns=s(options.seconds + WARMUP_S),
        warmup_ns=s(WARMUP_S),
        workers=options.devices,
        noise=Noise(sigma=0.02),
        frontend=FrontendSettings(max_pending=100_000),
        seed=options.seed,
    )
    cluster = SimulatedCluster(scenario)
    spec = cluster.signatures["text"]
    made: list[SimulatedReaders] = []

    def make_readers(process: Any) -> Sequence[Any]:
        made.append(SimulatedReaders("client/0000000a", spec, readers, s(WARMUP_S), cluster.end_ns, cancel_after))
        return made

    if readers:
        cluster.world.add("readers", make_readers)
    cluster.run()
    cluster.world.run(cluster.world.now_ns + s(5))
    cluster.world.check()
    return {
        "unary_in_time": cluster.tally.count("OK") / max(1, cluster.tally.count(*(status.name for status in Status))),
        **(stream_figures(made[0]) if made else {}),
        "open": count_open(cluster),
    }


def stream_figures(readers: SimulatedReaders) -> dict[str, Any]:
    gaps, firsts = sorted(readers.gaps_ns), sorted(readers.first_ns)
    late = readers.ends.get(int(Status.LATE), 0)
    return {
        "items": len(gaps) + len(firsts),
        "gaps_in_time": sum(gap <= ms(GAP_MS) for gap in gaps) / max(1, len(gaps) + late),
        "gap_p50_ms": gaps[len(gaps) // 2] / 1e6 if gaps else None,
        "gap_p99_ms": gaps[len(gaps) * 99 // 100] / 1e6 if gaps else None,
        "first_p99_ms": firsts[len(firsts) * 99 // 100] / 1e6 if firsts else None,
        "ends": {Status(status).name: count for status, count in readers.ends.items()},
        "cancelled": readers.cancelled,
    }


def count_open(cluster: SimulatedCluster) -> dict[str, int]:
    """Return what is open at the frontend, the selector, the controller and the workers."""
    frontend, selector, controller = (
        cluster.world.core(f"{name}/0") for name in ("frontend", "selector", "controller")
    )
    return {
        "requests": frontend.pending(),  # type: ignore[attr-defined]
        "staged": len(frontend.staging),  # type: ignore[attr-defined]
        "streams": len(selector.streams),  # type: ignore[attr-defined]
        "queued": controller.pending(),  # type: ignore[attr-defined]
        "states": sum(len(device.streams) for device in cluster.devices.values()),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=64)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--cancelled", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--load", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    alone = simulate(options, 0, options.load)
    beside = simulate(options, options.streams, options.load)
    cancelled = simulate(options, options.cancelled, 0.0, cancel_after=3)
    print(json.dumps({"alone": alone, "beside": beside, "cancelled": cancelled}, indent=2))
    failed = [
        beside["unary_in_time"] < alone["unary_in_time"] - LOSS,
        beside["gaps_in_time"] < GAPS_IN_TIME,
        cancelled["cancelled"] < options.cancelled,
        any(figures["open"][part] for figures in (beside, cancelled) for part in figures["open"]),
    ]
    return int(any(failed))


if __name__ == "__main__":
    sys.exit(main())
