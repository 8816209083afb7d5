"""A scenario for the controller alone: models, devices and requests, the same for every scheduler."""

from __future__ import annotations

from collections import defaultdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from horologe_common.clock import s
from horologe_common.distribution import Distribution
from horologe_common.models import PAGE_BYTES
from horologe_common.service.settings import SettingsError
from horologe_common.status import describe_error
from horologe_controller.core.runtime_distributions import RuntimeDistributions, SoloDistribution
from horologe_sim.comparison.request_file import (
    MAX_REQUESTS,
    FileRequest,
    RequestFile,
    describe_origin,
    read_requests,
)
from horologe_sim.controller_only.controller_world import ClusterSettings
from horologe_sim.controller_only.direct_device import DeviceEntry
from horologe_sim.controller_only.request_load import STATIC, Chunk, DynamicRequest
from horologe_sim.scenario.scenario import CATALOGUE_SIZES, ModelEntry, fill_catalogue, read_catalogue
from horologe_sim.scenario.workload import ScenarioLoad

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from horologe_sim.engine.simulated_device import SimModel
    from horologe_sim.engine.simulated_faults import Fault
    from horologe_sim.scenario.scenario import Scenario

GRACE_NS = s(1) // 2
RATIO = 1.25
"""Ratio of the longest to the shortest length of a range."""
LEAST_REQUESTS = 8
"""A range of lengths with fewer requests is merged with the next one."""


class PlayedLoad(NamedTuple):
    """Requests name a model by its index. The group of a request is that index; the last group is best effort."""

    models: list[SimModel]
    devices: list[DeviceEntry]
    distributions: Mapping[str, RuntimeDistributions]
    cluster: ClusterSettings
    chunk: Chunk
    duration_ns: int
    warmup_ns: int
    factors: Sequence[float]
    faults: Sequence[Fault] = ()
    notes: Sequence[str] = ()
    """Sentences for the user about the requests."""


def build_load(scenario: Scenario) -> PlayedLoad:
    """Return the load of a scenario. Raises SettingsError for what this world cannot play, or a wrong file."""
    _check_supported(scenario)
    requests, origin_ns = _requests_of(scenario)
    scenario, distributions = _with_input_times(scenario, requests)
    models = list(scenario.sim_models().values())
    base_ns = {name: max(1, known.base_ns) for name, known in distributions.items()}
    models = [
        msgspec.structs.replace(model, base_ns=base_ns.get(model.report.spec.name, 0), noise=None) for model in models
    ]
    places = {model.report.spec.key: place for place, model in enumerate(models)}
    devices = [
        DeviceEntry([models[places[key]] for key in scenario.sim_models(worker)]) for worker in range(scenario.workers)
    ]
    loads_ns = sum(model.report.profile.load_ns for model in models if model.report.profile)
    cluster = ClusterSettings(
        devices=scenario.workers,
        pages=scenario.worker.shares * scenario.worker.pages_bytes // PAGE_BYTES,
        noise=scenario.noise,
        settle_ns=max(scenario.settle_ns, s(1) + int(1.2 * loads_ns)),
        worker_ns=scenario.network.delay_ns + scenario.network.jitter_ns,
        grace_ns=GRACE_NS,
        turn_ns=scenario.network.turn_ns,
        controller=scenario.controller,
    )
    _check_requests(scenario, requests, models, base_ns)
    known = {f"{name}/1": each for name, each in distributions.items()}
    chunk = _build_chunk(requests, models, known, scenario.slo_ns if scenario.requests else 0)
    duration_ns = chunk.times_ns[-1] + 1 if scenario.requests else scenario.duration_ns
    return PlayedLoad(
        models,
        devices,
        known,
        cluster,
        chunk,
        duration_ns,
        scenario.warmup_ns,
        [1.0] * scenario.workers,
        notes=_describe_requests(chunk, scenario.warmup_ns, origin_ns),
    )


def _describe_requests(chunk: Chunk, warmup_ns: int, origin_ns: int) -> list[str]:
    """Return the notes about a load. Raises SettingsError if none of its requests would be counted."""
    counted_slos_ns = [slo for at_ns, slo in zip(chunk.times_ns, chunk.slos_ns, strict=True) if at_ns >= warmup_ns]
    if not counted_slos_ns:
        raise SettingsError(f"warmup: got {warmup_ns / 1e9:g}s, wanted less than the time of the last request")
    if not any(counted_slos_ns):
        raise SettingsError("slo: got no request with a deadline, wanted an slo in [[models]] or [[load]], or slo_ms")
    notes = [describe_origin(origin_ns)] if origin_ns else []
    if warm := len(chunk.times_ns) - len(counted_slos_ns):
        notes.append(f"{warm:,} requests of the warm-up are not counted")
    if best_effort := counted_slos_ns.count(0):
        notes.append(f"{best_effort:,} requests without a deadline are not counted")
    return notes


def _check_supported(scenario: Scenario) -> None:
    unsupported = {
        "applications": scenario.applications,
        "pipelines": scenario.pipelines,
        "faults": scenario.faults,
        "shares": scenario.shares,
        "clocks": scenario.clocks_ns,
        "profiler": scenario.profiler,
    }
    for name, value in unsupported.items():
        if value:
            raise SettingsError(f"--scheduler: got a scenario with {name}, wanted one with models and requests alone")
    for load in scenario.load:
        if load.kind == "closed" or load.cancel_share:
            wanted = "wanted requests that do not depend on the answers: the schedulers are compared on the same ones"
            raise SettingsError(f"load.kind: got {load.kind!r} with cancel_share {load.cancel_share:g}, {wanted}")


def _requests_of(scenario: Scenario) -> RequestFile:
    """Return the requests of the scenario's file, or those of its load, in order of time."""
    if scenario.requests:
        try:
            return read_requests(Path(scenario.requests))
        except (OSError, ValueError) as error:
            raise SettingsError(f"requests {scenario.requests}: {describe_error(error)}") from error
    names = list(scenario.entry_names())
    load = ScenarioLoad(scenario.load, names, scenario.seed, scenario.duration_ns)
    best_effort = -1
    requests = [
        FileRequest(ask.at_ns, ask.model, rows=ask.rows, slo_ns=best_effort if ask.best_effort else ask.slo_ns)
        for ask in islice(load.pop_due(scenario.duration_ns), MAX_REQUESTS + 1)
    ]
    if not 0 < len(requests) <= MAX_REQUESTS:
        count = "more" if requests else "none"
        raise SettingsError(f"load: got {count} requests, wanted from 1 to {MAX_REQUESTS:,} to compare schedulers")
    return RequestFile(requests)


def _with_input_times(
    scenario: Scenario, requests: Sequence[FileRequest]
) -> tuple[Scenario, dict[str, RuntimeDistributions]]:
    """Return the scenario with all models of the file, and distributions of those with execution times in it.

    Such models get a profile of their mean time if they have none. Other models must be declared or in the catalogue.
    """
    measured: dict[str, list[FileRequest]] = defaultdict(list)
    for request in requests:
        if request.exec_ns:
            measured[request.model].append(request)
    copies = ((name, entry) for entry in scenario.models for name in entry.names())
    entries = {name: msgspec.structs.replace(entry, name=name, count=1) for name, entry in copies}
    distributions = {}
    named = dict.fromkeys(request.model for request in requests if request.model)
    new = [ModelEntry(name, slo_ns=scenario.slo_ns) for name in named if name not in entries and name not in measured]
    for added in fill_catalogue(new):
        if not added.exec_ms:
            line = next(request.line for request in requests if request.model == added.name)
            known = ", ".join([*entries, *measured, *read_catalogue()][:5])
            wanted = f"wanted exec_ms, or the name of a model: {known}, ... (horologe sim --list-models)"
            raise SettingsError(f"requests {scenario.requests}: line {line}: model: got {added.name!r}, {wanted}")
        entries[added.name] = added
    if not entries and not measured:
        wanted = "wanted [[models]], --model, or the column model in the requests"
        raise SettingsError(f"models: got none, {wanted}")
    for name, own in measured.items():
        entry = entries.get(name)
        base_ns = round(1e6 * entry.base_ms) if entry else 0
        distributions[name] = learn_distributions(base_ns, own)
        mean_ms = distributions[name].mean_ns / 1e6
        exec_ms = {size: base_ns / 1e6 + size * (mean_ms - base_ns / 1e6) for size in CATALOGUE_SIZES}
        if entry is None:
            entries[name] = ModelEntry(name, exec_ms, load_ms=1.0, slo_ns=scenario.slo_ns)
        elif not entry.exec_ms:
            entries[name] = msgspec.structs.replace(entry, exec_ms=exec_ms)
    return msgspec.structs.replace(scenario, models=tuple(entries.values())), distributions


def learn_distributions(base_ns: int, requests: Iterable[FileRequest]) -> RuntimeDistributions:
    """Return the distributions of a model's execution times, by application and range of lengths."""
    by_application: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for request in requests:
        by_application[request.application].append((request.length, request.exec_ns))
    parts = [
        SoloDistribution(application, longest, Distribution.from_samples(times_ns), len(times_ns))
        for application, measured in by_application.items()
        for longest, times_ns in _by_length(sorted(measured))
    ]
    return RuntimeDistributions(base_ns, parts)


def _by_length(measured: Sequence[tuple[int, int]]) -> Iterator[tuple[int, list[int]]]:
    """Yield (longest length, execution times) for each range of lengths. `measured`: (length, time), ascending."""
    times_ns: list[int] = []
    first = measured[0][0]
    for place, (length, exec_ns) in enumerate(measured):
        left = len(measured) - place
        if length > RATIO * first and len(times_ns) >= LEAST_REQUESTS and left >= LEAST_REQUESTS:
            yield measured[place - 1][0], times_ns
            first, times_ns = length, []
        times_ns.append(exec_ns)
    yield measured[-1][0], times_ns


def _check_requests(
    scenario: Scenario, requests: Sequence[FileRequest], models: Sequence[SimModel], base_ns: Mapping[str, int]
) -> None:
    """Raise SettingsError for a request that is larger than the batches of its model, or shorter than `base_ms`."""
    specs = {model.report.spec.name: model.report.spec for model in models}
    smallest = min(max(spec.batch_sizes) for spec in specs.values())
    for request in requests:
        spec = specs.get(request.model)
        where = f"requests {scenario.requests}: line {request.line}" if request.line else "load"
        largest = max(spec.batch_sizes) if spec else smallest
        if request.rows > largest:
            raise SettingsError(f"{where}: rows: got {request.rows}, wanted at most {largest}, the largest batch")
        least_ns = base_ns.get(request.model, 0)
        if 0 < request.exec_ns < least_ns:
            wanted = f"wanted at least base_ms of the model, {least_ns / 1e6:g}"
            raise SettingsError(f"{where}: exec_ms: got {request.exec_ns / 1e6:g}, {wanted}")


def _build_chunk(
    requests: Sequence[FileRequest], models: Sequence[SimModel], known: Mapping[str, RuntimeDistributions], slo_ns: int
) -> Chunk:
    """Return the requests. `slo_ns`: SLO of models without their own; 0: their requests have no deadline."""
    places = {model.report.spec.name: place for place, model in enumerate(models)}
    slos_ns = [model.report.spec.slo_ns or slo_ns for model in models]
    any_model = np.random.default_rng([len(models), 5]).integers(0, len(models), len(requests)).tolist()
    columns: tuple[list[int], ...] = ([], [], [], [])
    inputs: list[DynamicRequest] = []
    for number, request in enumerate(requests):
        place = places.get(request.model, -1) if request.model else any_model[number]
        if place < 0:
            raise SettingsError(f"requests: model: got {request.model!r}, wanted one of {', '.join(list(places)[:20])}")
        budget_ns = max(0, request.slo_ns or slos_ns[place])
        row = request.at_ns, place, budget_ns, place if budget_ns else len(models)
        for column, value in zip(columns, row, strict=True):
            column.append(value)
        inputs.append(_input_of(request, known.get(models[place].report.spec.key)))
    times_ns, chosen, slos, groups = columns
    return Chunk(times_ns, chosen, slos, groups, inputs)


def _input_of(request: FileRequest, known: RuntimeDistributions | None) -> DynamicRequest:
    if known is None:
        return STATIC._replace(rows=request.rows)
    solo_ns = request.exec_ns or round(known.mean_ns)
    return DynamicRequest(max(1, solo_ns), request.application, request.length, request.rows)
