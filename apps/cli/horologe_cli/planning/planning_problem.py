"""A planning problem as the command line states it: pipeline, traffic, profiles and prices.

All errors are `SettingsError` with the option's name.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from horologe_cli.output import open_client
from horologe_common.pipelines import PipelineStructure
from horologe_common.service.settings import DURATIONS, SettingsError, load_settings, parse_quantity
from horologe_common.service.user_files import MAX_DOCUMENT_BYTES, read_file, read_json
from horologe_planning.catalogue import EXAMPLE_PIPELINES, catalogue_profiles
from horologe_planning.estimator.pipeline_workload import PipelineTrace
from horologe_planning.hardware import HardwareSettings, parse_prices
from horologe_planning.plan import Placement, PlanDocument, parse_document
from horologe_planning.profiles import add_profiles, decode_profiles, encode_profiles, measured_profile
from horologe_planning.search.evaluation import Evaluator
from horologe_planning.search.objective import Objective
from horologe_tuner.core.scaling.recent_arrivals import ArrivalCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from horologe import Client
    from horologe_cli.commands.planning.planning_options import ProblemOptions, ServerOptions
    from horologe_planning.hardware import HardwareType
    from horologe_planning.profiles import Profiles
    from horologe_planning.search.evaluation import Configuration


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


@contextmanager
def option_errors(option: str) -> Iterator[None]:
    """Convert a ValueError to a SettingsError that names the option."""
    try:
        yield
    except SettingsError:
        raise
    except ValueError as error:
        raise SettingsError(f"{option}: {error}") from error


def read_structure(text: str, slo: str, live: PipelineStructure | None = None) -> PipelineStructure:
    """Return an example by its name, or the pipeline of a JSON file, with another SLO if `slo` is not empty.

    `live`: the pipeline of a running system, in place of both.
    """
    structure = live or EXAMPLE_PIPELINES.get(text)
    if structure is None:
        if not os.path.isfile(text):
            raise SettingsError(f"PIPELINE: got {text!r}, wanted a file or one of {', '.join(EXAMPLE_PIPELINES)}")
        with option_errors(text):
            document = read_json(Path(text), dict[str, Any])
            shown = "structure" in document  # by `horologe pipeline show --json`
            structure = msgspec.convert(document["structure"] if shown else document, PipelineStructure)
    if slo:
        structure = msgspec.structs.replace(structure, slo_ns=parse_quantity("slo", slo, DURATIONS))
    with option_errors(text):
        structure.validate()
    return structure


def check_traffic(options: ProblemOptions, recent: bool) -> None:
    """Raise SettingsError unless exactly one of a trace, a rate and `recent` states the traffic."""
    if bool(options.trace) + bool(options.rate) + recent != 1:
        raise SettingsError("--trace, --rate, --recent: got several or none, wanted one of them")


def read_arrivals(options: ProblemOptions) -> NDArray[np.int64]:
    """Return the arrivals of the trace file, or drawn ones with gamma distributed gaps, in nanoseconds."""
    from horologe_load.arrivals import gamma, read_trace

    with option_errors("--trace" if options.trace else "--rate, --cv, --duration"):
        if options.trace:
            return read_trace(options.trace, max_gap_s=options.max_gap)
        seconds = parse_quantity("--duration", options.duration, DURATIONS) / 1e9
        return gamma(options.rate, options.cv, seconds, options.seed)


def read_hardware(config: str, prices: Sequence[str]) -> dict[str, HardwareType]:
    """Return the hardware types of the settings table `[hardware]`, with the prices of `--price` added or changed."""
    settings = load_settings(HardwareSettings, "hardware", config or None, os.environ)
    try:
        return parse_prices(settings.prices) | parse_prices(prices)
    except ValueError as error:
        raise SettingsError(str(error)) from error


def read_profiles(path: Path | None) -> Profiles:
    """Return the profiles of the catalogue, and those of the file, which replace the catalogue's."""
    profiles = catalogue_profiles()
    if path and path.exists():
        with option_errors(str(path)):
            for model, by_hardware in decode_profiles(read_file(path, MAX_DOCUMENT_BYTES, wait=True)).items():
                profiles[model] = profiles.get(model, {}) | by_hardware
    return profiles


def read_plans(path: Path) -> PlanDocument:
    """Return the document of `horologe plan make --json` in a file. Raises SettingsError that names the file."""
    with option_errors(str(path)):
        return parse_document(read_file(path, MAX_DOCUMENT_BYTES, wait=True))


def read_configuration(structure: PipelineStructure, plan: Path | None, stages: Sequence[str]) -> Configuration:
    """Return the configuration of a plan file, changed by texts STAGE=HARDWARE:BATCH:REPLICAS."""
    chosen: dict[str, Placement] = {}
    if plan:
        chosen = {placed.stage: placed for placed in _whole_devices(plan, structure.name)}
    models = {stage.name: stage.model for stage in structure.stages}
    for text in stages:
        name, equals, rest = text.partition("=")
        parts = rest.split(":")
        if not equals or len(parts) != 3 or not all(part.isdecimal() and int(part) for part in parts[1:]):
            raise SettingsError(f"--stage: got {text!r}, wanted STAGE=HARDWARE:BATCH:REPLICAS, as classify=v100:8:2")
        if name not in models:
            raise SettingsError(f"--stage: got stage {name!r}, wanted one of {', '.join(models)}")
        model = chosen[name].model if name in chosen else models[name]
        chosen[name] = Placement(name, model, parts[0], int(parts[1]), int(parts[2]))
    if missing := [name for name in models if name not in chosen]:
        raise SettingsError(f"--stage, --plan: got no configuration of {', '.join(missing)}, wanted all stages")
    return tuple(chosen[name] for name in models)


def _whole_devices(path: Path, name: str) -> Configuration:
    """Return the configuration of a pipeline in a plan file. Raises SettingsError if it is not on whole devices."""
    plans = {plan.name: plan for plan in read_plans(path).plans}
    if name not in plans:
        raise SettingsError(f"--plan: got plans of {', '.join(plans)}, wanted one of {name}")
    if plans[name].shares or plans[name].pooled:
        raise SettingsError(f"--plan: got {name} on pooled devices or shares, wanted whole devices, as by --stage")
    return plans[name].placements


def parse_accuracy(texts: Sequence[str]) -> dict[str, float]:
    """Return the accuracy by model, from texts like "resnet50_v2=0.77"."""
    accuracy: dict[str, float] = {}
    for text in texts:
        model, equals, number = text.partition("=")
        try:
            accuracy[model] = float(number)
        except ValueError:
            equals = ""
        if not equals:
            raise SettingsError(f"--accuracy: got {text!r}, wanted MODEL=PART, as resnet50_v2=0.77")
    return accuracy
