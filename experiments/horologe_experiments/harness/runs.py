"""One lean run of an experiment, its cost added to the whole."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from horologe_sim.fast.fast_world import FastWorld

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horologe_experiments.harness.experiment import Cost, Progress
    from horologe_sim.engine.virtual_worker import SimModel
    from horologe_sim.fast.cluster_setting import FastClusterSettings
    from horologe_sim.fast.fast_world import Watch
    from horologe_sim.fast.ledger import Ledger
    from horologe_sim.fast.traffic import Chunk, Loop


class Runs:
    """`total` lean runs, as one progress. Their cost is told from the machine's clock, which decides nothing."""

    def __init__(self, total: int, cost: Cost, progress: Progress) -> None:
        self._total = total
        self._done = 0
        self._cost = cost
        self._progress = progress

    def play(
        self,
        what: str,
        setting: FastClusterSettings,
        models: Sequence[SimModel],
        ledger: Ledger,
        seed: int,
        duration_ns: int,
        chunks: Iterable[Chunk] = (),
        loops: Sequence[Loop] = (),
        watch: Watch | None = None,
    ) -> FastWorld:
        """Run it to the end and check every law. `watch`: as for `Lean`."""
        lean = FastWorld(setting, models, ledger, seed, chunks, loops, clock=time.perf_counter_ns, watch=watch)
        begin = time.perf_counter()
        lean.run(duration_ns, lambda part: self._progress((self._done + part) / self._total, what))
        self._cost.wall_s += time.perf_counter() - begin
        self._cost.controller_s += lean.controller_ns / 1e9
        self._cost.requests += sum(line.sent for panel in ledger.panels for line in panel.lines)
        self._done += 1
        lean.check()
        return lean
