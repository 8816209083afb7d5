"""Pooled plans: the devices that a pipeline needs if every device can run every resident model.

InferLine gives each stage replicas of its own. In a pool, stages share devices, so that a burst of one stage uses the
idle time of the others. The estimator is the simulator with the real controller, which decides where calls run.
"""

from __future__ import annotations

import itertools
import math
from copy import copy
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from horologe_common.clock import NEVER_NS, ms, s
from horologe_common.models import ModelSpec, Profile, TensorSpec
from horologe_common.wire import ModelReport
from horologe_controller.settings import ControllerSettings
from horologe_planning.search.higher_rates import busiest_stretch
from horologe_planning.search.objective import Objective
from horologe_sim.controller_only.controller_world import ClusterSettings
from horologe_sim.controller_only.direct_device import DeviceEntry
from horologe_sim.controller_only.pipeline_world import PipelineQueries, PipelineWorld
from horologe_sim.engine.noise import NOISES
from horologe_sim.engine.simulated_device import SimModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from horologe_common.pipelines import PipelineStructure
    from horologe_planning.hardware import HardwareType
    from horologe_planning.plan import Placement
    from horologe_planning.profiles import Profiles, StageProfile
    from horologe_planning.search.evaluation import Evaluator

QUERIES = 6000
"""Queries of the sample that pools are simulated on. A simulation takes a few seconds."""
EXCHANGED = 12
"""Most devices that take the place of a dearer one."""
REST = 1.5
"""Time kept for the rest of a path, as a multiple of its execution times in batches of one."""

Pool = dict[str, int]
"""Devices by hardware type."""


class PooledPlan(msgspec.Struct, frozen=True):
    """The devices of a pool, by hardware type, with the attainment of the sample trace."""

    pipeline: str
    devices: Pool
    cost_per_hour: float
    attainment: float
    evaluations: int


class PoolResult(NamedTuple):
    """Attainment of the trace on a pool. `feasible`: whether it meets the planner's objective."""

    attainment: float
    feasible: bool


class PoolSimulation:
    """Attainment of a pipeline on devices, on one sample trace. `calls[query, stage]`: calls of each query."""

    def __init__(
        self,
        structure: PipelineStructure,
        profiles: Profiles,
        arrivals_ns: NDArray[np.int64],
        calls: NDArray[np.int16],
        seed: int,
        scheduler: str = "horologe",
    ) -> None:
        self.structure = structure
        self.profiles = profiles
        self._arrivals_ns = arrivals_ns
        self._calls = calls
        self._seed = seed
        self._setting = ClusterSettings(
            noise=NOISES["none"], settle_ns=s(1), controller=ControllerSettings(scheduler=scheduler)
        )

    def at_rate(self, factor: float) -> PoolSimulation:
        """Return the simulation of the same trace at `factor` times its rate."""
        scaled = copy(self)
        scaled._arrivals_ns = np.round(self._arrivals_ns / factor).astype(np.int64)
        return scaled

    def evaluate(self, pool: Mapping[str, int]) -> PoolResult:
        """Run the trace on a pool. The result is infeasible without a run if a stage has no device."""
        if not self.serves_all_stages(pool):
            return PoolResult(0.0, feasible=False)
        world, objective = self.run_pool(pool), Objective(self.structure.slo_ns)
        latencies_ns = np.where(world.latency_ns < 0, NEVER_NS, world.latency_ns)
        return PoolResult(world.attainment, objective.is_met(objective.missed_bound(latencies_ns)))

    def run_pool(self, pool: Mapping[str, int]) -> PipelineWorld:
        """Run the trace on a pool: every device has all models that are fast enough on it."""
        return self.run([self._models_on(hardware) for hardware, count in pool.items() for _ in range(count)])

    def run(self, devices: Sequence[Sequence[SimModel]]) -> PipelineWorld:
        """Run the trace on devices with these models."""
        by_name: dict[str, SimModel] = {}
        fastest_ns: dict[str, int] = {}
        for on_device in devices:
            for model in on_device:
                name, profile = model.report.spec.name, model.report.profile
                assert profile is not None
                by_name[name] = model
                fastest_ns[name] = min(profile.exec_ns[1], fastest_ns.get(name, profile.exec_ns[1]))
        rest_ns = rest_of_path(self.structure, fastest_ns, REST)
        models = [by_name[stage.model] for stage in self.structure.stages]
        setting = msgspec.structs.replace(self._setting, devices=len(devices))
        queries = PipelineQueries(self.structure, self._arrivals_ns, self._calls, rest_ns)
        entries = [DeviceEntry(on_device) for on_device in devices]
        world = PipelineWorld(setting, queries, models, entries, self._seed)
        world.run(int(self._arrivals_ns[-1]) + self.structure.slo_ns)
        world.check()
        return world

    def _models_on(self, hardware: str) -> list[SimModel]:
        names = dict.fromkeys(stage.model for stage in self.structure.stages)
        profiles = (self.profile_on(name, hardware) for name in names)
        return [sim_model(profile) for profile in profiles if profile is not None]

    def profile_on(self, model: str, hardware: str) -> StageProfile | None:
        """Return the profile of a model on a hardware type; None if it has none, or is too slow for the SLO there."""
        profile = self.profiles[model].get(hardware)
        return profile if profile is not None and profile.latency_ns[1] <= self.structure.slo_ns else None

    def serves_all_stages(self, pool: Mapping[str, int]) -> bool:
        """Return whether every stage has a device that can run its model."""
        on_pool = {
            model.report.spec.name for hardware, count in pool.items() if count for model in self._models_on(hardware)
        }
        return all(stage.model in on_pool for stage in self.structure.stages)


def pool_simulation(evaluator: Evaluator) -> PoolSimulation:
    """Return the simulation of the busiest queries of a planning problem."""
    work = evaluator.workload
    part = busiest_stretch(work.arrivals_ns, QUERIES)
    arrivals_ns = work.arrivals_ns[part] - work.arrivals_ns[part.start]
    return PoolSimulation(work.structure, evaluator.profiles, arrivals_ns, work.calls[part], work.seed)


def sim_model(profile: StageProfile, largest: int = 1 << 30) -> SimModel:
    """Return the emulated model of a profile, with batches up to `largest`. It is always resident."""
    exec_ns = {size: time_ns for size, time_ns in profile.latency_ns.items() if size <= largest}
    tensors = (TensorSpec("x", "FP32", (-1, 1)),), (TensorSpec("y", "FP32", (-1, 1)),)
    spec = ModelSpec(
        profile.model, "1", "emulated", *tensors, tuple(sorted(exec_ns)), weights_bytes=1, content_hash=profile.model
    )
    return SimModel(ModelReport(spec, Profile(exec_ns, ms(1))))


def rest_of_path(structure: PipelineStructure, stage_ns: Mapping[str, int], factor: float) -> dict[str, int]:
    """Return, for each stage, `factor` times the longest path after it. `stage_ns`: time by model."""
    rest_ns = dict.fromkeys((stage.name for stage in structure.stages), 0)
    for stage in reversed(structure.stages):
        for parent in stage.parents:
            rest_ns[parent] = max(rest_ns[parent], rest_ns[stage.name] + stage_ns[stage.model])
    return {name: round(factor * time_ns) for name, time_ns in rest_ns.items()}


def plan_pooled(
    simulation: PoolSimulation,
    hardware: Mapping[str, HardwareType],
    start: Iterable[Placement],
    progress: Callable[[str], None] | None = None,
) -> PooledPlan | None:
    """Return the cheapest pool found, or None if the devices of the plan `start` do not suffice as a pool.

    A pool must meet the planner's `Objective`, which keeps a margin for unseen traffic.

    Coordinate descent: find the fewest devices of each type by bisection, the dearest type first, until nothing
    changes. Then exchange a device for several of a cheaper type, or several for one of a dearer type, and descend
    again.
    """
    search = _Search(simulation, hardware, progress)
    pool: Pool = {}
    for stage in start:
        pool[stage.hardware] = pool.get(stage.hardware, 0) + stage.replicas
    if not search.is_feasible(pool):
        return None
    pool = search.shrink(pool)
    while (cheaper := search.exchange(pool)) is not None:
        pool = search.shrink(cheaper)
    pool = {name: count for name, count in pool.items() if count}
    return PooledPlan(simulation.structure.name, pool, search.price(pool), search.attainment(pool), search.evaluations)


class _Search:
    def __init__(
        self,
        simulation: PoolSimulation,
        hardware: Mapping[str, HardwareType],
        progress: Callable[[str], None] | None,
    ) -> None:
        self._simulation = simulation
        self._hardware = dict(sorted(hardware.items(), key=lambda item: -item[1].price_per_hour))
        self._progress = progress
        self._results: dict[tuple[int, ...], PoolResult] = {}

    @property
    def evaluations(self) -> int:
        return len(self._results)

    def price(self, pool: Pool) -> float:
        return sum(count * self._hardware[name].price_per_hour for name, count in pool.items())

    def attainment(self, pool: Pool) -> float:
        return self._result(pool).attainment

    def _result(self, pool: Pool) -> PoolResult:
        key = tuple(pool.get(name, 0) for name in self._hardware)
        if key not in self._results:
            if self._progress:
                self._progress(", ".join(f"{count} {name}" for name, count in pool.items()))
            self._results[key] = self._simulation.evaluate(pool)
        return self._results[key]

    def is_feasible(self, pool: Pool) -> bool:
        return self._result(pool).feasible

    def shrink(self, pool: Pool) -> Pool:
        """Remove devices while the pool is feasible, type by type."""
        before: Pool = {}
        while before != pool:
            before = pool
            for name in self._hardware:
                low, high = 0, pool.get(name, 0)
                while low < high:
                    middle = (low + high) // 2
                    if self.is_feasible({**pool, name: middle}):
                        high = middle
                    else:
                        low = middle + 1
                pool = {**pool, name: high}
        return pool

    def exchange(self, pool: Pool) -> Pool | None:
        """Return a feasible pool that costs less, with one device of a type exchanged for several of another, if any.

        A device is exchanged for as many cheaper ones as its price pays for, and the fewest that cost more for it.
        """
        for dear, cheap in itertools.combinations(self._hardware, 2):
            worth = self._hardware[dear].price_per_hour / self._hardware[cheap].price_per_hour
            for sign, count in ((-1, min(EXCHANGED, math.ceil(worth) - 1)), (1, math.floor(worth) + 1)):
                changed = {**pool, dear: pool.get(dear, 0) + sign, cheap: pool.get(cheap, 0) - sign * count}
                if count and min(changed.values()) >= 0 and self.is_feasible(changed):
                    return changed
        return None
