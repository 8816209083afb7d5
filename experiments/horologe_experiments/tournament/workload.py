"""Workloads of the tournament: models, devices and requests, the same for every scheduler that plays them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from horologe_common.clock import ms, s
from horologe_experiments.harness.experiment_world import Loop
from horologe_experiments.tournament.arrivals import draw_requests, model_shares
from horologe_experiments.tournament.model_mix import draw_models
from horologe_experiments.tournament.traits import WHOLE
from horologe_sim.controller_only.controller_world import ClusterSettings
from horologe_sim.controller_only.request_load import STATIC, Chunk, DynamicRequest
from horologe_sim.engine.noise import NOISES, Noise
from horologe_sim.engine.simulated_faults import Fault

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from horologe_controller.core.runtime_distributions import RuntimeDistributions
    from horologe_experiments.tournament.model_mix import MixedModel
    from horologe_experiments.tournament.traits import Rng, Slo, Traits
    from horologe_sim.engine.simulated_device import SimModel

WARMUP_S, LEAST_S, MOST_S = 1.0, 3.0, 60.0
"""Load before the measurement, and bounds of the measured time."""
MOST_REQUESTS = 4
"""A workload that needs more than this multiple of the wanted requests for `LEAST_S` has fewer devices instead."""
RESEND_NS = ms(10)
MOST_CLIENTS = 400
NOISE = NOISES | {"wide": Noise(sigma=0.1, tail_share=0.05, tail_ns=ms(2))}


class Workload(NamedTuple):
    """A workload. `chunk` and `loops` name models by index; the group of a request is its model's index.

    The group after the last model is best effort.
    """

    traits: Traits
    """Of the devices that it has: a workload with too few requests for all that were drawn has fewer."""
    models: list[SimModel]
    distributions: Mapping[str, RuntimeDistributions]
    """Distributions of dynamic models, by key, as the profiler would publish them."""
    cluster: ClusterSettings
    factors: tuple[float, ...]
    faults: tuple[Fault, ...]
    chunk: Chunk
    loops: tuple[Loop, ...]
    duration_ns: int
    groups: int
    """Number of models that requests are counted by."""
    slos_ns: NDArray[np.int64]
    """SLO of each model."""
    capacity: float
    """Requests per second that all devices serve in the best batches within the SLOs."""

    @property
    def warmup_ns(self) -> int:
        return s(WARMUP_S)

    @property
    def measured_s(self) -> float:
        return (self.duration_ns - self.warmup_ns) / 1e9

    def can_be_served(self, sent: NDArray[np.float64], least_budget: float) -> NDArray[np.bool_]:
        """Return which models have SLOs of `least_budget` times of a request alone, and are no more than all devices.

        `sent`: measured requests of each model.
        """
        times_ns = [model.report.profile.exec_ns for model in self.models if model.report.profile is not None]
        alone_ns = min(self.factors) * np.array([min(times.values()) for times in times_ns])
        row_s = np.array([min(time_ns / size for size, time_ns in times.items()) for times in times_ns]) / 1e9
        devices = sum(1 / factor for factor in self.factors)
        budgets_ns = self.slos_ns - self.traits.slo.beyond_ns
        return (budgets_ns >= least_budget * alone_ns) & (sent * row_s <= devices * self.measured_s)


def build_workload(traits: Traits, requests: int) -> Workload:
    """Return the workload of these traits, with about `requests` requests. Deterministic."""
    model_rng, slo_rng, arrival_rng = (np.random.default_rng([17, traits.seed, part]) for part in range(3))
    models = draw_models(traits, model_rng, requests)
    slos_ns = [_draw_slo_ns(traits.slo, model, slo_rng) for model in models]
    factors = traits.devices
    rate_of_one = 1 / float(model_shares(traits) @ _best_row_s(models, slos_ns))
    while len(factors) > 1 and _capacity(rate_of_one, factors) * traits.load * LEAST_S > MOST_REQUESTS * requests:
        factors = factors[:-1]
    capacity = _capacity(rate_of_one, factors)
    rate = traits.load * capacity
    seconds = WARMUP_S + min(MOST_S, max(LEAST_S, requests / rate))
    loops: tuple[Loop, ...] = ()
    chunk = Chunk((), (), (), ())
    if traits.arrivals == "closed":
        loops = _draw_loops(traits, slos_ns, rate, arrival_rng)
    else:
        chunk = _draw_chunk(traits, models, slos_ns, rate, seconds, arrival_rng)
    keys = [model.sim.report.spec.key for model in models]
    known = {
        key: model.distributions.scaled(min(factors))
        for key, model in zip(keys, models, strict=True)
        if model.distributions
    }
    sims = [model.sim for model in models]
    duration_ns = s(seconds)
    faults = _place_faults(traits, len(factors), duration_ns)
    cluster = _cluster(traits, sims, len(factors))
    kept = tuple(fault for fault in traits.faults if fault.device < len(factors))
    played = msgspec.structs.replace(traits, devices=factors, faults=kept)
    return Workload(
        played, sims, known, cluster, factors, faults, chunk, loops, duration_ns, len(sims), np.array(slos_ns), capacity
    )


def _capacity(rate_of_one: float, factors: Sequence[float]) -> float:
    return rate_of_one * sum(1 / factor for factor in factors)


def _draw_slo_ns(slo: Slo, model: MixedModel, rng: Rng) -> int:
    drawn = float(np.exp(rng.uniform(np.log(slo.low), np.log(slo.high))))
    return slo.beyond_ns + round(drawn * (ms(1) if slo.unit == "ms" else model.exec_ns[min(model.exec_ns)]))


def _best_row_s(models: Sequence[MixedModel], slos_ns: Sequence[int]) -> NDArray[np.float64]:
    """Return the least time of a request of each model in a batch within its SLO; alone, if no batch is."""
    best = []
    for model, slo_ns in zip(models, slos_ns, strict=True):
        sizes = [size for size, time_ns in model.exec_ns.items() if time_ns <= slo_ns] or [min(model.exec_ns)]
        best.append(min(model.exec_ns[size] / size for size in sizes) / 1e9)
    return np.array(best)


def _draw_loops(traits: Traits, slos_ns: Sequence[int], rate: float, rng: Rng) -> tuple[Loop, ...]:
    """Return closed-loop clients, which send `rate` if each answer takes half of the SLO."""
    shares = model_shares(traits)
    clients = int(min(MOST_CLIENTS, max(1.0, rate * float(shares @ slos_ns) / 2e9)))
    drawn = rng.choice(traits.models, clients, p=shares).tolist()
    return tuple(Loop(model, slos_ns[model], model, RESEND_NS) for model in drawn)


def _draw_chunk(
    traits: Traits, models: Sequence[MixedModel], slos_ns: Sequence[int], rate: float, seconds: float, rng: Rng
) -> Chunk:
    times, drawn = draw_requests(traits, rate, seconds, rng)
    names = drawn.tolist()
    free = (rng.random(len(names)) < traits.best_effort).tolist()
    slos = [0 if best_effort else slos_ns[model] for model, best_effort in zip(names, free, strict=True)]
    groups = [len(models) if best_effort else model for model, best_effort in zip(names, free, strict=True)]
    inputs = [_inputs(model, traits.known) for model in models]
    requests = [next(inputs[model]) for model in names] if any(model.future for model in models) else ()
    return Chunk(times.tolist(), names, slos, groups, requests)


def _inputs(model: MixedModel, known: str) -> Iterator[DynamicRequest]:
    """Yield the inputs of a model's requests in turn, again and again."""
    if (future := model.future) is None:
        yield from itertools.repeat(STATIC)
        return
    rows = zip(future.solo_ns.tolist(), future.application.tolist(), future.length.tolist(), strict=True)
    for solo_ns, application, length in itertools.cycle(list(rows)):
        name = "" if known == "nothing" else f"application {application}"
        yield DynamicRequest(solo_ns, name, length if known == "lengths" else 0)


def _place_faults(traits: Traits, devices: int, duration_ns: int) -> tuple[Fault, ...]:
    """Return the faults of the devices that there are, with times in nanoseconds."""
    warmup_ns = s(WARMUP_S)
    span_ns = duration_ns - warmup_ns
    faults = []
    for device, *part, slowness in traits.faults:
        begin_ns, end_ns = (warmup_ns + at * span_ns // WHOLE for at in part)
        if device >= devices:
            continue
        if slowness:
            fault = Fault(begin_ns, f"worker/{device}", "slow", for_ns=end_ns - begin_ns, factor=slowness)
        else:
            fault = Fault(begin_ns, f"worker/{device}", restart_ns=end_ns - begin_ns)
        faults.append(fault)
    return tuple(faults)


def _cluster(traits: Traits, sims: Sequence[SimModel], devices: int) -> ClusterSettings:
    pages = [model.report.spec.pages for model in sims]
    loads_ns = sum(model.report.profile.load_ns for model in sims if model.report.profile)
    return ClusterSettings(
        devices=devices,
        pages=int(max(max(pages), np.ceil(traits.memory * sum(pages)))),
        noise=NOISE[traits.noise],
        settle_ns=s(1) + int(1.2 * loads_ns),
        worker_ns=traits.network_ns,
        grace_ns=ms(500),
    )
