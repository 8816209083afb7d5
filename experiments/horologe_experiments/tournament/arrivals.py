"""Arrivals of a tournament workload: times by the kind of process, and the model of each request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from horologe_experiments.harness.request_streams import popularity
from horologe_experiments.traces.azure_functions import read_calls
from horologe_experiments.traces.request_rates import NASA_DAYS, read_nasa_day
from horologe_load.arrivals import gamma

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from horologe_experiments.tournament.traits import Rng, Traits

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

CALM_S, BURST_S = 2.0, 0.6
"""Mean lengths of the states of a Markov-modulated process."""


def model_shares(traits: Traits) -> Floats:
    """Return the share of each model in the requests, the most popular first."""
    return popularity(traits.models, traits.skew)


def draw_requests(traits: Traits, rate: float, seconds: float, rng: Rng) -> tuple[Ints, Ints]:
    """Return ascending times in nanoseconds and the model of each request."""
    if traits.arrivals == "azure":
        calls = _function_calls(seconds, rng)
        times = _draw_times(calls.sum(0) + 1e-9, seconds, rng.poisson(rate * seconds), rng)
        return times, _models_of_functions(times / (seconds * 1e9), calls, traits.models, rng)
    if traits.arrivals == "gamma":
        times = gamma(rate, traits.cv, seconds, rng)
    else:
        times = _draw_times(_relative_rates(traits, seconds, rng), seconds, rng.poisson(rate * seconds), rng)
    return times, rng.choice(traits.models, len(times), p=model_shares(traits))


def _relative_rates(traits: Traits, seconds: float, rng: Rng) -> Floats:
    """Return the relative rates of equal steps. A minute of a trace is played in a second."""
    steps = max(1, round(seconds))
    if traits.arrivals == "nasa":
        counts = np.concatenate([read_nasa_day(day) for day in NASA_DAYS])
        first = int(rng.integers(len(counts) - steps))
        return counts[first : first + steps] + 1e-9
    if traits.arrivals == "bursts":
        return _bursts(traits.cv, seconds, rng)
    return np.ones(1)


def _bursts(factor: float, seconds: float, rng: Rng) -> Floats:
    """Return rates of a two-state Markov-modulated process by hundredths of a second."""
    rates: list[float] = []
    burst = False
    while len(rates) < 100 * seconds:
        rates += [factor if burst else 1.0] * max(1, round(100 * rng.exponential(BURST_S if burst else CALM_S)))
        burst = not burst
    return np.array(rates[: max(1, round(100 * seconds))])


def _function_calls(seconds: float, rng: Rng) -> Floats:
    """Return the calls of the functions of the Azure trace by step, (functions, steps), the most called first."""
    calls, steps = read_calls(), max(1, round(seconds))
    first = int(rng.integers(calls.shape[1] - steps))
    return calls[np.argsort(-calls.sum(1), kind="stable"), first : first + steps]


def _draw_times(weights: Floats, seconds: float, count: int, rng: Rng) -> Ints:
    """Return `count` ascending times whose density in equal steps is proportional to `weights`."""
    edges = np.concatenate([[0.0], np.cumsum(weights)])
    drawn = np.sort(rng.random(count)) * edges[-1]
    parts = np.interp(drawn, edges, np.linspace(0.0, 1.0, len(edges)))
    times: Ints = (parts * seconds * 1e9).astype(np.int64)
    return times


def _models_of_functions(parts: Floats, calls: Floats, models: int, rng: Rng) -> Ints:
    """Return the models of requests at these parts of the time: function n calls model n mod the number of models."""
    steps = np.minimum((parts * calls.shape[1]).astype(int), calls.shape[1] - 1)
    shares = np.zeros((models, calls.shape[1]))
    for function, row in enumerate(calls):
        shares[function % models] += row
    edges = np.cumsum(shares + 1e-9, axis=0)
    drawn = rng.random(len(parts)) * edges[-1, steps]
    models_of: Ints = (edges[:, steps] < drawn).sum(0).astype(np.int64)
    return models_of
