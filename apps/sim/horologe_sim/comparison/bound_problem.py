"""The requests, devices and pages of a bound, as arrays."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from horologe_common.clock import ms, s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from horologe_sim.comparison.bound import BoundedLoad
    from horologe_sim.engine.simulated_faults import Fault

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


EPOCHS_NS = ms(50), ms(500), s(5)
"""Lengths of epochs. The least bound counts."""


class Period(NamedTuple):
    """A time in which batches may start on a device, and take `slowness` times as long. They end by `ends_ns`."""

    from_ns: float = -math.inf
    until_ns: float = math.inf
    slowness: float = 1.0
    ends_ns: float = math.inf


class DeviceKind(NamedTuple):
    """`devices` devices with the same faults, and execution times as multiples (`factor`) of `BoundProblem.exec_ns`."""

    factor: float
    devices: int
    periods: Sequence[Period]
    holds: Floats
    """(sizes, requests): most requests of such a batch that can be in time together."""


class BoundProblem(NamedTuple):
    """Requests in order of arrival. Times in ns. `exec_ns` (sizes, requests): time of a batch without noise."""

    arrival_ns: Floats
    deadline_ns: Floats
    exec_ns: Floats
    kinds: Sequence[DeviceKind]
    factors: Floats
    """Factors of the noise, the least one first."""
    weights: Floats
    """Their probabilities."""
    repeated: float = 0.0
    """Requests that may run twice, because a device was lost."""


def make_problem(workload: BoundedLoad, chosen: Ints) -> BoundProblem:
    """Return the arrays of the chosen requests."""
    chunk, cluster = workload.chunk, workload.cluster
    times, slos, models = (np.array(values, float)[chosen] for values in (chunk.times_ns, chunk.slos_ns, chunk.models))
    arrival_ns = times + cluster.client_ns + cluster.worker_ns
    deadline_ns = times + slos - cluster.answer_ns
    tables = [model.report.profile.exec_ns for model in workload.models if model.report.profile]
    sizes = sorted({size for table in tables for size in table})
    by_model = np.array([[table.get(size, np.inf) for table in tables] for size in sizes])
    by_model = np.minimum.accumulate(by_model[::-1])[::-1]  # a larger batch may be taken for a smaller one
    exec_ns = by_model[:, models.astype(int)]
    if chunk.requests:
        solo_ns = np.array([chunk.requests[index].solo_ns for index in chosen], float)
        base_ns = np.array([model.base_ns for model in workload.models], float)[models.astype(int)]
        padded_ns = base_ns + np.array(sizes)[:, None] * (solo_ns - base_ns)
        exec_ns = np.where(solo_ns > 0, np.maximum(1.0, padded_ns), exec_ns)
    factors, weights = np.array(cluster.noise.low_factors()).T
    kinds = []
    for factor, devices, periods in _group_devices(workload):
        holds = [
            count_companions(arrival_ns, deadline_ns - factors[0] * factor * row_ns, models, size)
            for size, row_ns in zip(sizes, exec_ns, strict=True)
        ]
        kinds.append(DeviceKind(factor, devices, periods, np.array(holds)))
    repeated = max(sizes) * sum(fault.kind == "kill" for fault in workload.faults)
    return BoundProblem(arrival_ns, deadline_ns, exec_ns, kinds, factors, weights, repeated)


def _group_devices(workload: BoundedLoad) -> list[tuple[float, int, tuple[Period, ...]]]:
    """Return the factor, number and periods of devices that are alike."""
    periods: list[tuple[Period, ...]] = [(Period(),)] * len(workload.factors)
    for fault in workload.faults:
        periods[fault.worker] = _periods(fault, workload.cluster.worker_ns)
    alike = list(zip(workload.factors, periods, strict=True))
    return [(factor, alike.count((factor, each)), each) for factor, each in dict.fromkeys(alike)]


def _periods(fault: Fault, known_ns: int) -> tuple[Period, ...]:
    """Return the periods of a device. A fault that begins or ends `known_ns` after the start may count or not."""
    if fault.kind == "kill":
        return Period(until_ns=fault.at_ns, ends_ns=fault.at_ns), Period(from_ns=fault.until_ns)
    begin_ns, end_ns = fault.at_ns + known_ns, fault.until_ns - known_ns
    if begin_ns >= end_ns:
        return (Period(),)
    return Period(until_ns=begin_ns), Period(begin_ns, end_ns, fault.factor), Period(from_ns=end_ns)


def count_companions(arrival_ns: Floats, last_ns: Floats, models: Floats, size: int) -> Floats:
    """Return the most requests of a model, at least 1 and at most `size`, that can start together with each request.

    A request can start from its arrival until `last_ns`, its last start. Their number grows at arrivals only, so the
    most that can start at a time is found at an arrival.
    """
    most = np.ones(len(arrival_ns))
    for model in np.unique(models):
        own = np.flatnonzero(models == model)
        own = own[np.argsort(arrival_ns[own], kind="stable")]
        arrivals, lasts = arrival_ns[own], last_ns[own]
        startable = lasts >= arrivals
        begun = np.searchsorted(arrivals[startable], arrivals, side="right")
        ended = np.searchsorted(np.sort(lasts[startable]), arrivals)
        ends = np.maximum(np.searchsorted(arrivals, lasts, side="right"), np.arange(1, len(own) + 1))
        slices = np.column_stack([np.arange(len(own)), ends]).ravel()
        together = np.maximum.reduceat(np.append(begun - ended, 0), slices)[::2]
        most[own] = np.clip(together, 1, size)
    return most


class PageRoom:
    """The models of each epoch, and the pages that they can use until the last of its requests is due."""

    def __init__(self, workload: BoundedLoad, chosen: Ints, epoch_ns: int) -> None:
        times, slos, models = (
            np.array(values)[chosen]
            for values in (workload.chunk.times_ns, workload.chunk.slos_ns, workload.chunk.models)
        )
        pages = np.array([model.report.spec.pages for model in workload.models], float)
        loads_ns = [model.report.profile.load_ns for model in workload.models if model.report.profile]
        fastest = float((pages / loads_ns).max()) / workload.cluster.noise.least_factor("load")
        self._room = len(workload.factors) * (workload.cluster.pages + (epoch_ns + int(slos.max())) * fastest)
        used, self._use = np.unique(times // epoch_ns * len(pages) + models, return_inverse=True)
        epochs = used // len(pages)
        self._pages = pages[used % len(pages)]
        """By use: a model in an epoch. Uses are in the order of epochs."""
        self._epochs, self._first = epochs, np.searchsorted(epochs, epochs)

    def is_short(self) -> bool:
        """Return whether the models of an epoch need more pages than there are."""
        needed = np.bincount(np.unique(self._epochs, return_inverse=True)[1], self._pages)
        return bool(needed.max() > self._room)

    def most_valuable(self, values: Floats) -> tuple[float, Floats]:
        """Return the total value of the requests of the models that fit, and the part of each request that does.

        In each epoch the models with the highest value per page fit, and a part of the last one.
        """
        value = np.bincount(self._use, values, len(self._pages))
        order = np.lexsort((-value / self._pages, self._epochs))
        before = np.concatenate([[0.0], np.cumsum(self._pages[order])])
        fits = np.empty(len(order))
        fits[order] = np.clip((self._room - before[:-1] + before[self._first]) / self._pages[order], 0.0, 1.0)
        return float(value @ fits), fits[self._use]
