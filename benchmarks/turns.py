"""Answers in time by clients in flight, where the interpreter is the bottleneck: simulated, as a table and a figure.

Every message that a core handles makes a turn longer. Long turns delay requests until they are too late, and refused
clients come back at once. Sides: both remedies, without the limit of a turn (`TurnLimit` of the frontend), and also
without more batches in flight (`MORE_IN_FLIGHT` of the lanes).

    python benchmarks/turns.py
    python benchmarks/turns.py --figure docs/turns.png --json turns.json
"""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from unittest.mock import patch

from horologe_common.clock import ms, s, us
from horologe_experiments.harness.plots import make_figure
from horologe_frontend.core.overload import TurnLimit
from horologe_sim.engine.network import NetworkSettings
from horologe_sim.scenario.scenario import ModelEntry, Scenario
from horologe_sim.scenario.simulated_cluster import SimulatedCluster
from horologe_sim.scenario.workload import LoadPhase

if TYPE_CHECKING:
    from collections.abc import Sequence

CLIENTS = (16, 64, 128, 192, 256, 288, 320, 384)
NOOP = ModelEntry("noop", {1: 0.012, 2: 0.013, 4: 0.015, 8: 0.018, 16: 0.025}, load_ms=1.0, slo_ns=ms(25))
"""Execution times in milliseconds, as ONNX Runtime has on a CPU."""
NETWORK = NetworkSettings(turn_ns=us(30), message_ns=us(17))
"""A request in time is four messages to cores of the edge, a refused one a single message."""
SIDES = {"both": (), "no turn limit": ("limit",), "neither": ("limit", "in_flight")}


class TurnsRow(NamedTuple):
    """A row of the result, per second of virtual time."""

    side: str
    clients: int
    in_time: float
    late: float
    refused: float
    p50_ms: float


def measure(side: str, clients: int, seconds: float) -> TurnsRow:
    """Simulate a closed loop of clients that send their next request as soon as they have an answer."""
    scenario = Scenario(
        (NOOP,), (LoadPhase("closed", clients=clients),), duration_ns=s(seconds), settle_ns=ms(200), network=NETWORK
    )
    with ExitStack() as patches:
        if "limit" in SIDES[side]:
            patches.enter_context(patch.object(TurnLimit, "accept"))
            patches.enter_context(patch.object(TurnLimit, "waited_ns", return_value=0))
        if "in_flight" in SIDES[side]:
            patches.enter_context(patch("horologe_controller.core.cluster.message_latency.MORE_IN_FLIGHT", 1))
        cluster = SimulatedCluster(scenario)
        cluster.run()
    total = cluster.report().total
    counts = (total.ok / seconds, total.late / seconds, total.refused / seconds)
    return TurnsRow(side, clients, *counts, total.p50_ms)


def draw(rows: Sequence[TurnsRow], path: Path) -> None:
    """Draw answers in time, and refusals, against the clients."""
    figure, panels = make_figure(1, 2)
    for axes, field, title in zip(panels, ("in_time", "refused"), ("answers in time/s", "refused/s"), strict=True):
        for side in SIDES:
            points = [(row.clients, getattr(row, field)) for row in rows if row.side == side]
            axes.plot(*zip(*points, strict=True), marker="o", label=side)
        axes.set(xlabel="clients in flight", title=title, ylim=(0, None))
    panels[0].legend()
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="virtual time of every point")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--figure", type=Path, help="draw them into this file; needs matplotlib")
    args = parser.parse_args()
    rows: list[TurnsRow] = []
    print("| side | clients | in time/s | late/s | refused/s | p50 ms |\n| --- | --- | --- | --- | --- | --- |")
    for side in SIDES:
        for clients in CLIENTS:
            rows.append(row := measure(side, clients, args.seconds))
            print(
                "|", " | ".join([row.side, str(row.clients), *(f"{value:,.1f}" for value in row[2:])]), "|", flush=True
            )
    if args.json:
        args.json.write_text(json.dumps([row._asdict() for row in rows], indent=1))
    if args.figure:
        draw(rows, args.figure)


if __name__ == "__main__":
    main()
