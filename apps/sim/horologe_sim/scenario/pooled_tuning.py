"""The tuner's plan for a pool: each hardware type with the models that run there, and provisioning levels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from horologe_planning.envelope import envelope_of, window_lengths
from horologe_planning.tuning_plan import ProvisioningLevel, StageTarget, TuningPlan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from horologe_planning.plans import PipelinePlan
    from horologe_sim.scenario.pooled_plan import PooledPlan, PoolSimulation

FACTORS = (0.25, 0.35, 0.5, 0.7, 1.0)
"""Multiples of the sample's rate. Beyond the last one the tuner scales a pool in proportion: a larger pool needs fewer
devices for the same part of its load."""


def pooled_tuning_plan(
    simulation: PoolSimulation, pooled: PooledPlan, plan: PipelinePlan, arrivals_ns: NDArray[np.int64]
) -> TuningPlan:
    """Return the plan that the tuner carries out for a pool. `plan`: the dedicated plan for the same sample.

    It has a stage `STAGE@HARDWARE` for each stage and each hardware type of the pool that is fast enough for it.
    """
    targets = tuple(_targets(simulation, pooled.devices, plan))
    levels = tuple(
        ProvisioningLevel(factor, tuple(pool[target.hardware] for target in targets))
        for factor, pool in _levels(simulation, pooled.devices)
    )
    envelope = envelope_of(arrivals_ns, window_lengths(plan.service_ns))
    return TuningPlan(plan.pipeline, plan.slo_ns, plan.rate, envelope, targets, levels=levels, pooled=True)


def _targets(simulation: PoolSimulation, devices: Mapping[str, int], plan: PipelinePlan) -> Iterator[StageTarget]:
    for stage in plan.stages:
        for hardware, count in devices.items():
            if (profile := simulation.profile_on(stage.model, hardware)) is not None:
                batch = max(profile.batch_sizes)
                throughput, name = profile.throughput(batch), f"{stage.stage}@{hardware}"
                yield StageTarget(name, stage.model, hardware, batch, count, throughput, stage.scale_factor)


def _levels(simulation: PoolSimulation, devices: Mapping[str, int]) -> Iterator[tuple[float, dict[str, int]]]:
    """Yield each factor with the smallest part of the pool that suffices for it, of the parts in `FACTORS`."""
    parts = {part: {name: math.ceil(part * count) for name, count in devices.items()} for part in FACTORS}
    for factor in FACTORS:
        slower = simulation.at_rate(factor)
        enough = (pool for part, pool in parts.items() if factor <= part < 1 and slower.evaluate(pool).feasible)
        yield factor, next(enough, dict(devices))
