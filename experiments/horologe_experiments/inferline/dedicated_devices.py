"""The trace of a pool on a dedicated plan: every device has the model of one stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_sim.scenario.pooled_plan import sim_model

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horologe_planning.plan import Placement
    from horologe_sim.controller_only.pipeline_world import PipelineWorld
    from horologe_sim.scenario.pooled_plan import PoolSimulation


def run_dedicated(simulation: PoolSimulation, configuration: Iterable[Placement]) -> PipelineWorld:
    """Run the trace on a dedicated plan, with batches up to those of each stage.

    Devices of one model have the same batch sizes, because these belong to the model.
    """
    stages, largest = list(configuration), dict[str, int]()
    for stage in stages:
        largest[stage.model] = max(stage.max_batch, largest.get(stage.model, 0))
    devices = [
        [sim_model(simulation.profiles[stage.model][stage.hardware], largest[stage.model])]
        for stage in stages
        for _ in range(stage.replicas)
    ]
    return simulation.run(devices)
