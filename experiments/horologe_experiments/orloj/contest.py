"""All schedulers on the same arrivals of one row, each with its defaults, and with its own knobs chosen for the row."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from scipy.stats import t as student

from horologe_experiments.orloj.workload_replay import HISTORY, Told, finish_rate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from horologe_experiments.orloj.workloads import Workload

    Build = Callable[[float, int, int], Workload]
    """A workload by rate, number of requests and seed."""
    Knobs = dict[str, float | bool | str]

Differences: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"
OURS = "horologe"
BLIND = ("clipper", "nexus", "clockwork", "deferred", "edf")
"""Know nothing of distributions."""
SEARCHED: dict[str, tuple[Knobs, ...]] = {
    "clipper": (
        {"clipper_quantile_regression": True},
        {"clipper_increase": 0.25},
        {"clipper_increase": 4.0},
        {"clipper_backoff": 0.5},
    ),
    "nexus": (
        {"nexus_slo_part": 0.35},
        {"nexus_slo_part": 0.7},
        {"nexus_slo_part": 1.0},
        {"nexus_slo_part": 0.7, "nexus_deviations": 1.0},
        {"nexus_slo_part": 1.0, "nexus_deviations": 1.0},
    ),
    "clockwork": ({"lookahead_ns": 500_000}, {"in_flight": 1}),
    "deferred": ({"deferred_slo_part": 0.0}, {"deferred_slo_part": 0.25}, {"deferred_slo_part": 1.0}),
    "edf": ({"in_flight": 1},),
    "orloj": ({"orloj_order": "latest"}, {"orloj_b_per_ms": 1e-2}, {"orloj_b_per_ms": 1e-1}),
}
"""Beside the defaults: what is tried, on seeds of their own; the best is taken."""
SEARCH_SEEDS = (101, 102)
HISTORY_SEED = 977
FEW = 5
LIMIT = 0.975
"""Of both sides: the lower limit of the 95% interval."""


class Entry(NamedTuple):
    """A column of the table. `lengths`: whether it is told how long requests of each length take."""

    scheduler: str
    lengths: bool = False
    searched: bool = False

    @property
    def name(self) -> str:
        return f"{self.scheduler}{'*' * self.searched}{'+' * self.lengths}"


ENTRIES = (
    *(Entry(one) for one in (*BLIND, "orloj", OURS)),
    *(Entry(one, lengths=True) for one in ("orloj", OURS)),
    *(Entry(one, searched=True) for one in (*BLIND, "orloj")),
    Entry("orloj", lengths=True, searched=True),
)


def contest(build: Build, rate: float, requests: int, seeds: Sequence[int], searched: bool) -> dict[str, list[float]]:
    """Finish rates by entry and seed; without `searched` only with defaults."""
    history = build(rate, HISTORY, HISTORY_SEED)
    workloads = [build(rate, requests, seed) for seed in seeds]
    trials = [build(rate, requests, seed) for seed in SEARCH_SEEDS] if searched else []
    found: dict[str, list[float]] = {}
    for entry in ENTRIES:
        if entry.searched and not searched:
            continue
        told = Told(history, entry.lengths)
        knobs = _search(entry, told, trials) if entry.searched else {}
        if entry.searched and not knobs:
            found[entry.name] = found[entry._replace(searched=False).name]
        else:
            found[entry.name] = [finish_rate(one, told, entry.scheduler, knobs) for one in workloads]
    return found


def _search(entry: Entry, told: Told, trials: Sequence[Workload]) -> Knobs:
    """The best knobs of those that are tried; none if that is the defaults."""

    def mean(knobs: Knobs) -> float:
        return float(np.mean([finish_rate(one, told, entry.scheduler, knobs) for one in trials]))

    best, reached = {}, mean({})
    for knobs in SEARCHED[entry.scheduler]:
        if (rate := mean(knobs)) > reached:
            best, reached = knobs, rate
    return best


def margin(found: Mapping[str, Sequence[float]], lengths: bool) -> tuple[float, str]:
    """(lower 95% limit of what `horologe` finishes more, against which other): the least over all others.

    Differences are paired: the same arrivals. With fewer than five seeds it is their mean.
    """
    return min((_lower(one), name) for name, one in _differences(found, lengths).items())


def undecided(found: Mapping[str, Sequence[float]], lengths: bool, worse: float) -> bool:
    """Whether against some other the lower limit is at most `worse`, but against none the mean is: too few seeds."""
    differences = _differences(found, lengths).values()
    return any(_lower(one) <= worse for one in differences) and all(one.mean() > worse for one in differences)


def _differences(found: Mapping[str, Sequence[float]], lengths: bool) -> dict[str, Differences]:
    """What `horologe` finishes more than each other, by seed."""
    ours = np.array(found[Entry(OURS, lengths).name])
    others = [entry.name for entry in ENTRIES if entry.scheduler != OURS and (lengths or not entry.lengths)]
    return {name: ours - np.array(found[name]) for name in others if name in found}


def _lower(differences: Differences) -> float:
    count = len(differences)
    if count < FEW:
        return float(differences.mean())
    return float(differences.mean() - _factor(count) * differences.std(ddof=1) / count**0.5)


@functools.cache
def _factor(count: int) -> float:
    return float(student.ppf(LIMIT, count - 1))
