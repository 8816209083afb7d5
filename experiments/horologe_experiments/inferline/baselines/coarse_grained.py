"""Coarse-grained planning, InferLine's baseline (section 6): the pipeline is one black box, replicated as a unit.

A unit has one replica of every stage and one batch size: the largest for which the pipeline meets the SLO. The paper
has one type of GPU. Here the baseline may choose the cheapest type, but takes the same one for all stages that can use
a GPU.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from horologe_planning.hardware import price_of
from horologe_planning.plan import Placement

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from horologe_common.pipelines import PipelineStructure
    from horologe_planning.hardware import HardwareType
    from horologe_planning.profiles import Profiles
    from horologe_planning.search.evaluation import Configuration

CPU = "cpu"


def mean_rate(arrivals_ns: NDArray[np.int64]) -> float:
    """Return the mean queries per second of a trace (CG-mean)."""
    return (len(arrivals_ns) - 1) * 1e9 / float(arrivals_ns[-1] - arrivals_ns[0])


def peak_rate(arrivals_ns: NDArray[np.int64], window_ns: int) -> float:
    """Return the most queries per second in any window of this length (CG-peak uses the SLO)."""
    ends = arrivals_ns.searchsorted(arrivals_ns + window_ns, side="left")
    return float((ends - range(len(arrivals_ns))).max()) * 1e9 / window_ns


def plan_coarse_grained(
    structure: PipelineStructure,
    profiles: Profiles,
    hardware: Mapping[str, HardwareType],
    arrivals_ns: NDArray[np.int64],
    strategy: Literal["mean", "peak"],
) -> Configuration | None:
    """Return the cheapest configuration of equal units for the mean or peak rate. None if no unit meets the SLO."""
    rate = mean_rate(arrivals_ns) if strategy == "mean" else peak_rate(arrivals_ns, structure.slo_ns)
    plans = []
    for accelerator in hardware:
        unit = largest_unit(structure, profiles, accelerator)
        if unit is not None:
            replicas = max(1, math.ceil(rate / unit_throughput(structure, profiles, unit)))
            plans.append(scale_unit(unit, replicas))
    return min(plans, key=lambda plan: price_of(plan, hardware), default=None)


def scale_unit(unit: Configuration, replicas: int) -> Configuration:
    """Return the configuration with so many units."""
    return tuple(Placement(stage.stage, stage.model, stage.hardware, stage.max_batch, replicas) for stage in unit)


def largest_unit(structure: PipelineStructure, profiles: Profiles, accelerator: str) -> Configuration | None:
    """Return the unit with the largest batch whose service time meets the SLO. None if not even batch 1 does.

    Stages whose model has no profile on the accelerator run on CPUs. None if a model has no profile on CPUs either.
    """
    types = {stage.name: accelerator if accelerator in profiles[stage.model] else CPU for stage in structure.stages}
    if any(types[stage.name] not in profiles[stage.model] for stage in structure.stages):
        return None
    sizes = profiles[structure.stages[0].model][types[structure.stages[0].name]].batch_sizes
    for batch in reversed(sizes):
        unit = tuple(Placement(stage.name, stage.model, types[stage.name], batch) for stage in structure.stages)
        if longest_path_ns(structure, profiles, unit) <= structure.slo_ns:
            return unit
    return None


def longest_path_ns(structure: PipelineStructure, profiles: Profiles, configuration: Configuration) -> int:
    """Return the time of full batches on the longest path, without queueing."""
    end_ns: dict[str, int] = {}
    for stage, chosen in zip(structure.stages, configuration, strict=True):
        took_ns = profiles[chosen.model][chosen.hardware].latency_ns[chosen.max_batch]
        end_ns[stage.name] = max((end_ns[parent] for parent in stage.parents), default=0) + took_ns
    return max(end_ns.values())


def unit_throughput(structure: PipelineStructure, profiles: Profiles, unit: Configuration) -> float:
    """Return the queries per second of one unit: those of its slowest stage."""
    return min(
        profiles[stage.model][stage.hardware].throughput(stage.max_batch) / structure.scale_factor(stage.stage)
        for stage in unit
    )
