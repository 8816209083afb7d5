"""Reads pipelines, traffic, profiles and prices for planning. All errors are `SettingsError` with the option's name."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.pipelines import PipelineStructure
from horologe_common.service.settings import DURATIONS, SettingsError, load_settings, parse_quantity
from horologe_common.service.user_files import MAX_DOCUMENT_BYTES, read_file, read_json
from horologe_planning.catalogue import catalogue_profiles
from horologe_planning.example_pipelines import EXAMPLE_PIPELINES
from horologe_planning.hardware import parse_prices
from horologe_planning.hardware_settings import HardwareSettings
from horologe_planning.plan import Placement, PlanDocument, parse_document
from horologe_planning.profiles import decode_profiles

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from horologe_cli.commands.planning.planning_options import ProblemOptions
    from horologe_planning.hardware import HardwareType
    from horologe_planning.profiles import Profiles
    from horologe_planning.search.evaluation import Configuration


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
