"""Builds a scenario from command line options: models, an SLO, a rate or a file of arrivals, a number of devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.clock import s
from horologe_common.models import PAGE_BYTES
from horologe_common.service.settings import DURATIONS, SettingsError, parse_quantity
from horologe_common.status import describe_error
from horologe_gpu_worker.settings import WorkerSettings
from horologe_load.arrivals import read_arrivals
from horologe_sim.engine.noise import NOISES
from horologe_sim.scenario.clockwork_models import read_catalogue
from horologe_sim.scenario.scenario import ModelEntry, Scenario
from horologe_sim.scenario.workload import LoadPhase

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def build_scenario(
    models: Sequence[str],
    slo: str,
    rate: float,
    trace: Path | None,
    devices: int,
    duration: str,
    pages: int,
    noise: str,
) -> Scenario:
    """Return the scenario. `models`: NAME or NAME*COPIES. `trace`: a CSV file of lines `seconds[,model]`.

    Raises SettingsError, naming the invalid option.
    """
    slo_ns = parse_quantity("--slo", slo, DURATIONS)
    entries = tuple(_entry(text, slo_ns) for text in models)
    if noise not in NOISES:
        raise SettingsError(f"--noise: got {noise!r}, wanted one of {', '.join(NOISES)}")
    if (rate > 0) == (trace is not None):
        raise SettingsError("--rate, --trace: got both or neither, wanted one of them")
    loads, last_ns = _arrivals(trace) if trace else ((LoadPhase(rate=rate),), s(10))
    return Scenario(
        entries, loads, name="command line",
        duration_ns=parse_quantity("--duration", duration, DURATIONS) if duration else last_ns, settle_ns=s(2),
        path="direct", workers=devices, noise=NOISES[noise], worker=WorkerSettings(pages_bytes=pages * PAGE_BYTES),
    )  # fmt: skip


def _entry(text: str, slo_ns: int) -> ModelEntry:
    name, star, copies = text.partition("*")
    catalogue = read_catalogue()
    if name not in catalogue or (star and not (copies.isdigit() and int(copies) > 0)):
        raise SettingsError(f"--model: got {text!r}, wanted NAME or NAME*COPIES with one of {', '.join(catalogue)}")
    return msgspec.structs.replace(catalogue[name], count=int(copies) if star else 1, slo_ns=slo_ns)


def _arrivals(path: Path) -> tuple[tuple[LoadPhase, ...], int]:
    """Return a load phase for each model, and the duration of the trace in nanoseconds."""
    try:
        times = read_arrivals(path)
    except (OSError, ValueError) as error:
        raise SettingsError(f"--trace {path}: {describe_error(error)}") from error
    phases = tuple(
        LoadPhase("trace", times_ns=tuple(at), models=(model,) if model else ()) for model, at in times.items()
    )
    return phases, max((phase.times_ns[-1] for phase in phases), default=0) + 1
