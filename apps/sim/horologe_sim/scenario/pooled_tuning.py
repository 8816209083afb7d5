"""The tuner's plan for a pool: each hardware type with the models that run there, and provisioning levels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from horologe_planning.plan import Placement, Plan, ProvisioningLevel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from horologe_sim.scenario.pooled_plan import PooledPlan, PoolSimulation

FACTORS = (0.25, 0.35, 0.5, 0.7, 1.0)
"""Multiples of the sample's rate. Beyond the last one the tuner scales a pool in proportion: a larger pool needs fewer
devices for the same part of its load."""


def pooled_tuning_plan(simulation: PoolSimulation, pooled: PooledPlan, plan: Plan) -> Plan:
    """Return the plan that the tuner carries out for a pool. `plan`: the dedicated plan for the same sample.

    It has a stage `STAGE@HARDWARE` for each stage and each hardware type of the pool that is fast enough for it.
    """
    placements = tuple(_placements(simulation, pooled.devices, plan))
    levels = tuple(
        ProvisioningLevel(factor, tuple(pool[placed.hardware] for placed in placements))
        for factor, pool in _levels(simulation, pooled.devices)
    )
    return msgspec.structs.replace(plan, placements=placements, levels=levels, pooled=True)


def _placements(simulation: PoolSimulation, devices: Mapping[str, int], plan: Plan) -> Iterator[Placement]:
    for placed in plan.placements:
        for hardware, count in devices.items():
            if (profile := simulation.profile_on(placed.model, hardware)) is not None:
                batch = max(profile.batch_sizes)
                yield Placement(
                    f"{placed.stage}@{hardware}",
                    placed.model,
                    hardware,
                    batch,
                    count,
                    throughput=profile.throughput(batch),
                    scale_factor=placed.scale_factor,
                )


def _levels(simulation: PoolSimulation, devices: Mapping[str, int]) -> Iterator[tuple[float, dict[str, int]]]:
    """Yield each factor with the smallest part of the pool that suffices for it, of the parts in `FACTORS`."""
    parts = {part: {name: math.ceil(part * count) for name, count in devices.items()} for part in FACTORS}
    for factor in FACTORS:
        slower = simulation.at_rate(factor)
        enough = (pool for part, pool in parts.items() if factor <= part < 1 and slower.evaluate(pool).feasible)
        yield factor, next(enough, dict(devices))
