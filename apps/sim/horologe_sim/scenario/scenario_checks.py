"""Checks of a whole scenario, before it is simulated: what no field can show alone."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from horologe_common.service.settings import SettingsError
from horologe_common.status import InvalidInput
from horologe_controller.core.cluster.cluster import Cluster
from horologe_controller.schedulers import SCHEDULERS
from horologe_sim.scenario.workload import select_models

if TYPE_CHECKING:
    from horologe_sim.scenario.scenario import Scenario
    from horologe_sim.scenario.workload import LoadPhase


def check_scenario(scenario: Scenario) -> None:
    """Raise SettingsError for a scenario that cannot be simulated, or that would send no requests."""
    check_scheduler("controller.scheduler", scenario.controller.scheduler)
    SCHEDULERS[scenario.controller.scheduler](scenario.controller, Cluster())  # raises SettingsError for its parameters
    _check_models(scenario)
    if scenario.requests:
        return
    if not scenario.models and not scenario.pipelines:
        raise SettingsError("models: got none, wanted [[models]], --model or --models")
    if not scenario.load:
        raise SettingsError("load: got none, wanted [[load]] or requests")
    if scenario.warmup_ns >= scenario.duration_ns:
        raise SettingsError(
            f"warmup: got {scenario.warmup_ns / 1e9:g}s, wanted less than the duration, {scenario.duration_ns / 1e9:g}s"
        )
    names = list(scenario.entry_names())
    sizes = {model.report.spec.name: max(model.report.spec.batch_sizes) for model in scenario.sim_models().values()}
    for number, load in enumerate(scenario.load):
        _check_load(f"load[{number}]", load, names, sizes)


def check_scheduler(where: str, name: str) -> None:
    """Raise SettingsError unless `name` is a scheduler."""
    if name not in SCHEDULERS:
        raise SettingsError(f"{where}: got {name!r}, wanted one of {', '.join(SCHEDULERS)}")


def _check_models(scenario: Scenario) -> None:
    names = Counter(name for entry in scenario.models for name in entry.names())
    if repeated := [name for name, count in names.items() if count > 1]:
        raise SettingsError(f"models: name: got {repeated[0]!r} more than once, wanted each name once")
    for entry in scenario.models:
        if outside := [number for number in entry.workers if number >= scenario.workers]:
            raise SettingsError(
                f"models: {entry.name}: workers: got {outside[0]}, wanted numbers from 0 to {scenario.workers - 1}"
            )


def _check_load(where: str, load: LoadPhase, names: list[str], sizes: dict[str, int]) -> None:
    if load.kind == "trace" and not load.times_ns:
        raise SettingsError(f'{where}.times: got none, wanted times, because kind is "trace"')
    if load.kind in ("poisson", "even") and not load.rate:
        raise SettingsError(f"{where}.rate: got 0, wanted requests per second")
    if load.kind == "bursts" and not load.rate and not load.burst_rate:
        raise SettingsError(f"{where}.burst_rate: got 0, wanted requests per second")
    if load.kind == "bursts" and load.burst_ns > load.every_ns:
        raise SettingsError(
            f"{where}.burst: got {load.burst_ns / 1e9:g}s, wanted at most every: {load.every_ns / 1e9:g}s"
        )
    if load.application:
        return
    try:
        chosen = select_models(names, load.models)
    except InvalidInput as error:
        raise SettingsError(f"{where}: {error.reason}") from error
    largest = min((sizes[name] for name in chosen if name in sizes), default=load.rows)
    if load.rows > largest:
        raise SettingsError(f"{where}.rows: got {load.rows}, wanted at most {largest}, the largest batch of its models")
