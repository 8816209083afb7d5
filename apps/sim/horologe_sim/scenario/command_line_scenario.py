"""Builds a scenario from command line options: models, an SLO, a rate or a trace, a number of devices."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from horologe_common.clock import s
from horologe_common.models import PAGE_BYTES, natural_sort_key
from horologe_common.service.settings import DURATIONS, SettingsError, load_settings, parse_quantity
from horologe_common.status import HorologeError, describe_error
from horologe_gpu_worker.settings import WorkerSettings
from horologe_load.arrivals import read_arrivals, read_counts
from horologe_sim.comparison.request_file import MAX_LOAD, describe_origin, find_origin_ns
from horologe_sim.controller_only.controller_world import PAGES
from horologe_sim.engine.noise import NOISES
from horologe_sim.engine.number_types import MAX_LOAD_NS
from horologe_sim.scenario.scenario import MIB, ModelEntry, Scenario, read_catalogue
from horologe_sim.scenario.workload import LoadPhase

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


DEFAULT_SLO, DEFAULT_NOISE = "100ms", "clockwork"


class ScenarioOptions(NamedTuple):
    """Options of the command line. `model`: NAME or NAME*COPIES of the catalogue. `models`: a model repository."""

    model: Sequence[str] = ()
    models: Path | None = None
    slo: str = ""
    """Empty: the SLO of each model of `models`, or `DEFAULT_SLO`."""
    rate: float = 0.0
    trace: Path | None = None
    """CSV file of lines `seconds[,model]`."""
    counts: Path | None = None
    """CSV file of lines `second,count[,model]`, or `minute,count[,model]` below a line with these names."""
    requests: Path | None = None
    """CSV file with a line for each request. Its models need not be named."""
    devices: int = 1
    duration: str = ""
    pages: int = PAGES
    noise: str = DEFAULT_NOISE


def build_scenario(options: ScenarioOptions) -> Scenario:
    """Return the scenario. Raises SettingsError, naming the invalid option."""
    slo_ns = _duration_ns("--slo", options.slo or DEFAULT_SLO)
    entries = tuple(_entry(text, slo_ns) for text in options.model)
    if options.models is not None:
        entries += measured_models(options.models, slo_ns, bool(options.slo))
    if options.noise not in NOISES:
        raise SettingsError(f"--noise: got {options.noise!r}, wanted one of {', '.join(NOISES)}")
    if not (options.rate or options.trace or options.counts or options.requests):
        raise SettingsError("--rate, --trace, --counts, --requests: got none, wanted one of them")
    scenario = Scenario(
        entries,
        (LoadPhase(rate=options.rate),),
        name="command line",
        settle_ns=s(2),
        path="direct",
        workers=options.devices,
        noise=NOISES[options.noise],
        slo_ns=slo_ns,
        worker=WorkerSettings(pages_bytes=options.pages * PAGE_BYTES),
    )
    return replace_load(scenario, options)


def replace_load(scenario: Scenario, options: ScenarioOptions) -> Scenario:
    """Return the scenario with the requests of the options' file, if they name one, and their duration.

    The warm-up of the scenario does not apply to such a file. A note about its times replaces the description.
    """
    _check_sources(options)
    changes: dict[str, Any] = {}
    if options.trace:
        changes = _arrivals("--trace", options.trace, read_arrivals)
    elif options.counts:
        changes = _arrivals("--counts", options.counts, read_counts)
    elif options.requests:
        changes = {"load": (), "duration_ns": 1, "warmup_ns": 0, "requests": str(options.requests)}
    if options.duration:
        changes["duration_ns"] = _duration_ns("--duration", options.duration)
    return msgspec.structs.replace(scenario, **changes)


def measured_models(repository: Path, slo_ns: int, override: bool) -> tuple[ModelEntry, ...]:
    """Return the latest version of each model of a repository, with the times that were measured on this machine.

    Profiles come from `worker.cache`; missing ones are measured now. `slo_ns` is used for models without an SLO, with
    `override` for all. Raises SettingsError if a model cannot be served.
    """
    from horologe_gpu_worker.repository.modelstore import ModelStore

    cache = load_settings(WorkerSettings, "worker", None, os.environ).cache
    latest = {}
    try:
        reports = ModelStore(repository, Path(cache)).scan()
    except HorologeError as error:
        raise SettingsError(f"--models {error.reason}") from error
    for report in sorted(reports, key=lambda report: natural_sort_key(report.spec.version)):
        spec, profile = report.spec, report.profile
        if profile is None:
            raise SettingsError(f"--models {repository}: {spec.key}: {report.reason}")
        exec_ms = {size: profile.exec_ns[size] / 1e6 for size in spec.batch_sizes}
        latest[spec.name] = ModelEntry(
            spec.name,
            exec_ms,
            load_ms=profile.load_ns / 1e6,
            weights_mb=spec.weights_bytes / MIB,
            slo_ns=slo_ns if override or not spec.slo_ns else spec.slo_ns,
        )
    if not latest:
        raise SettingsError(f"--models {repository}: got no models, wanted a model repository")
    return tuple(latest.values())


def _check_sources(options: ScenarioOptions) -> None:
    given = {
        "--rate": options.rate or None,
        "--trace": options.trace,
        "--counts": options.counts,
        "--requests": options.requests,
    }
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise SettingsError(f"{', '.join(named)}: got several, wanted one of {', '.join(given)}")
    if options.requests and options.duration:
        raise SettingsError("--duration, --requests: got both, wanted one of them: all requests of a file are played")


def _duration_ns(option: str, text: str) -> int:
    duration_ns = parse_quantity(option, text, DURATIONS)
    if not 0 < duration_ns <= MAX_LOAD_NS:
        raise SettingsError(f"{option}: got {text!r}, wanted a duration above 0 and of at most {MAX_LOAD}")
    return duration_ns


def _entry(text: str, slo_ns: int) -> ModelEntry:
    name, star, copies = text.partition("*")
    catalogue = read_catalogue()
    if name not in catalogue or (star and not (copies.isdigit() and int(copies) > 0)):
        close = dict.fromkeys((*difflib.get_close_matches(name, catalogue), "resnet50_v1", "densenet121", "googlenet"))
        wanted = f"wanted NAME or NAME*COPIES of a catalogue model, for example {', '.join(close)}"
        raise SettingsError(f"--model: got {text!r}, {wanted} (horologe sim --list-models)")
    return msgspec.structs.replace(catalogue[name], count=int(copies) if star else 1, slo_ns=slo_ns)


def _arrivals(option: str, path: Path, read: Callable[[Path], dict[str, list[int]]]) -> dict[str, Any]:
    """Return the fields of a scenario: a load phase for each model, the duration, and a note about the times."""
    try:
        times = read(path)
        if not times:
            raise ValueError("got no requests, wanted at least one")
        last_ns = max(at[-1] for at in times.values())
        origin_ns = find_origin_ns(min(at[0] for at in times.values()), last_ns)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{option} {path}: {describe_error(error)}") from error
    phases = tuple(
        LoadPhase("trace", times_ns=tuple(time_ns - origin_ns for time_ns in at), models=(model,) if model else ())
        for model, at in times.items()
    )
    return {
        "load": phases,
        "duration_ns": last_ns - origin_ns + 1,
        "warmup_ns": 0,
        "requests": "",
        "description": describe_origin(origin_ns),
    }
