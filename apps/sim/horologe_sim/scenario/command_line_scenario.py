"""A scenario from a few words on a command line: models, an SLO, a rate or a file of arrivals, a number of devices."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import msgspec

from horologe_common.clock import s
from horologe_common.models import PAGE_BYTES
from horologe_common.service.settings import DURATIONS, SettingsError, parse_quantity
from horologe_gpu_worker.settings import WorkerSettings
from horologe_sim.engine.noise import NOISES
from horologe_sim.scenario.clockwork_models import PAGES, catalogue_models
from horologe_sim.scenario.scenario import ModelEntry, Scenario
from horologe_sim.scenario.workload import LoadPhase

if TYPE_CHECKING:
    from pathlib import Path

LONGEST = 1_000_000
"""Arrivals read from a file."""


class ScenarioOptions(msgspec.Struct, frozen=True):
    """What was said. `models`: `NAME` or `NAME*COPIES`, of the catalogue; `trace`: CSV lines `seconds[,model]`."""

    models: tuple[str, ...]
    slo: str = "100ms"
    rate: float = 0.0
    trace: Path | None = None
    devices: int = 1
    duration: str = ""
    pages: int = PAGES
    noise: str = "clockwork"


def build_scenario(words: ScenarioOptions) -> Scenario:
    """The scenario meant. Raises `SettingsError` naming what cannot be."""
    slo_ns = parse_quantity("--slo", words.slo, DURATIONS)
    entries = tuple(_entry(text, slo_ns) for text in words.models)
    if words.noise not in NOISES:
        raise SettingsError(f"--noise: got {words.noise!r}, wanted one of {', '.join(NOISES)}")
    if (words.rate > 0) == (words.trace is not None):
        raise SettingsError("--rate, --trace: got both or neither, wanted one of them")
    loads, last_ns = _arrivals(words.trace) if words.trace else ((LoadPhase(rate=words.rate),), s(10))
    duration_ns = parse_quantity("--duration", words.duration, DURATIONS) if words.duration else last_ns
    return Scenario(
        entries,
        loads,
        name="command line",
        duration_ns=duration_ns,
        settle_ns=s(2),
        path="direct",
        workers=words.devices,
        noise=NOISES[words.noise],
        worker=WorkerSettings(pages_bytes=words.pages * PAGE_BYTES),
    )


def _entry(text: str, slo_ns: int) -> ModelEntry:
    name, star, copies = text.partition("*")
    known = {one.name: one for one in catalogue_models()}
    if name not in known or (star and not (copies.isdigit() and int(copies) > 0)):
        raise SettingsError(f"--model: got {text!r}, wanted NAME or NAME*COPIES with one of {', '.join(known)}")
    found = known[name]
    count = int(copies) if star else 1
    return ModelEntry(
        name, found.exec_ms, count=count, load_ms=found.load_ms, weights_mb=found.weights_mb, slo_ns=slo_ns
    )


def _arrivals(path: Path) -> tuple[tuple[LoadPhase, ...], int]:
    """Loads by model, and when the last request comes."""
    times: dict[str, list[int]] = {}
    try:
        with path.open(newline="") as file:
            for number, row in enumerate(csv.reader(file), start=1):
                if number > LONGEST:
                    raise SettingsError(f"--trace {path}: got more than {LONGEST:,} lines")
                if row:
                    model = row[1].strip() if len(row) > 1 else ""
                    times.setdefault(model, []).append(_time_ns(path, number, row[0]))
    except OSError as error:
        raise SettingsError(f"--trace {path}: {error}") from error
    loads = tuple(
        LoadPhase("trace", times_ns=tuple(sorted(at)), models=(model,) if model else ()) for model, at in times.items()
    )
    return loads, max((at[-1] for at in (load.times_ns for load in loads)), default=0) + 1


def _time_ns(path: Path, number: int, text: str) -> int:
    try:
        at_ns = s(float(text))
    except (ValueError, OverflowError):
        at_ns = -1
    if at_ns < 0:
        raise SettingsError(f"--trace {path}: line {number}: got {text!r}, wanted seconds from the beginning")
    return at_ns
