"""A planning problem as the command line states it, with the profiles of a running system if wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from horologe_cli.output import open_client
from horologe_cli.planning.planning_inputs import (
    check_traffic,
    read_arrivals,
    read_hardware,
    read_profiles,
    read_structure,
)
from horologe_common.service.settings import SettingsError
from horologe_common.service.user_files import MAX_DOCUMENT_BYTES, read_file
from horologe_planning.estimator.pipeline_workload import PipelineTrace
from horologe_planning.profiles import add_profiles, decode_profiles, encode_profiles, measured_profile
from horologe_planning.search.evaluation import Evaluator
from horologe_planning.search.objective import Objective
from horologe_tuner.core.scaling.recent_arrivals import ArrivalCounts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from horologe import Client
    from horologe_cli.commands.planning.planning_options import ProblemOptions, ServerOptions
    from horologe_common.pipelines import PipelineStructure
    from horologe_planning.hardware import HardwareType
    from horologe_planning.profiles import Profiles

MIN_RECENT = 100
"""Queries of a sample. With fewer, the bounds for unseen traffic mean nothing."""


class PlanningProblem(NamedTuple):
    """Pipeline, sample of arrivals, profiles and prices."""

    structure: PipelineStructure
    arrivals_ns: NDArray[np.int64]
    seed: int
    profiles: Profiles
    hardware: dict[str, HardwareType]

    def evaluator(
        self, objective: Objective, structure: PipelineStructure, on_run: Callable[[int], None] = lambda runs: None
    ) -> Evaluator:
        """Return the problem for one choice of models. The visits of the queries do not depend on this choice."""
        workload = PipelineTrace(structure, self.arrivals_ns, self.seed)
        return Evaluator(workload, self.profiles, self.hardware, objective, on_run)


def read_problem(
    pipeline: str, options: ProblemOptions, server: ServerOptions, recent: bool = False
) -> PlanningProblem:
    """Return the problem, with `recent` for the arrivals that the tuner has observed.

    Raises SettingsError and HorologeError.
    """
    check_traffic(options, recent)
    known, hardware = read_profiles(options.profiles), read_hardware(options.config, options.price or ())
    if not (options.live or recent):
        structure = read_structure(pipeline, options.slo)
        return PlanningProblem(structure, read_arrivals(options), options.seed, known, hardware)
    with open_client(server.endpoint, server.keys) as client:
        structure = read_structure(pipeline, options.slo, live_structure(client, pipeline))
        add_measured(known, structure, client, options.profiles)
        arrivals_ns = recent_arrivals(client, pipeline) if recent else read_arrivals(options)
    return PlanningProblem(structure, arrivals_ns, options.seed, known, hardware)


def recent_arrivals(client: Client, pipeline: str) -> NDArray[np.int64]:
    """Return the arrivals of queries that the tuner has observed, evenly spread over each of its bins.

    Raises SettingsError for too few, HorologeError if no plan of the pipeline is applied.
    """
    observed = msgspec.convert(client.tune("arrivals", pipeline.encode()), ArrivalCounts)
    counts = np.array(observed.counts, np.int64)
    if counts.sum() < observed.calls_per_query * MIN_RECENT:
        raise SettingsError(f"--recent: got {counts.sum()} recent arrivals of {pipeline}, wanted at least {MIN_RECENT}")
    places = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    within = (places + 0.5) / np.repeat(counts, counts)
    calls_ns = ((np.repeat(np.arange(counts.size), counts) + within) * observed.bin_ns).astype(np.int64)
    queries = np.arange(0, calls_ns.size - 1e-9, observed.calls_per_query).astype(np.int64)
    return calls_ns[queries]


def live_structure(client: Client, name: str) -> PipelineStructure:
    """Return the structure that a running system has learned of a pipeline. Raises SettingsError before any query."""
    structure = client.pipeline(name).structure
    if structure is None:
        raise SettingsError(f"pipeline {name}: no query has been answered yet, so its structure is not known")
    return structure


def add_measured(profiles: Profiles, structure: PipelineStructure, client: Client, path: Path | None) -> None:
    """Add profiles on hardware types without one, from the times of a running system. Write them to the file, if any.

    The times are those of the models' recent requests, else those that the workers measured at their start. A request
    that the pipeline has served counts with its own intermediates. Raises HorologeError.
    """
    models = {model for stage in structure.stages for model in (stage.model, *stage.variants)}
    served = {state.spec.name for state in client.models()}
    found = [
        profile
        for model in sorted(models)
        if model not in profiles or model.partition("/")[0] in served
        for hardware, times in _times_by_hardware(client, model).items()
        if hardware not in profiles.get(model, {}) and (profile := measured_profile(model, hardware, times))
    ]
    add_profiles(profiles, found)
    if path and found:
        stored = decode_profiles(read_file(path, MAX_DOCUMENT_BYTES)) if path.exists() else {}
        add_profiles(stored, found)
        path.write_bytes(encode_profiles(stored))


def _times_by_hardware(client: Client, model: str) -> dict[str, list[dict[int, int]]]:
    """Return the times of the model's newest version by hardware type. `model`: a name, or a key `name/version`."""
    name, _, version = model.partition("/")
    keys = [state.spec.key for state in client.models(name) if version in ("", state.spec.version)]
    times: dict[str, list[dict[int, int]]] = {}
    for share in client.describe(keys[-1]).shares if keys else ():
        if share.exec_ns:
            times.setdefault(share.hardware or share.device, []).append(share.exec_ns)
    return times
