"""Compare all schedulers on the arrivals of one row: with default settings, and with settings searched for the row."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from scipy.stats import t as student

from horologe_experiments.orloj.workload_replay import HISTORY, SchedulerKnowledge, finish_rate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from horologe_experiments.orloj.workloads import Workload

    Build = Callable[[float, int, int], Workload]
    """Builds a workload from rate, number of requests and seed."""
    Overrides = dict[str, bool | int | float | str | dict[str, bool | int | float | str]]

Differences: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"
OURS = "horologe"
BLIND = ("clipper", "nexus", "clockwork", "deferred", "edf")
"""Schedulers that do not use distributions."""
SEARCHED: dict[str, tuple[Overrides, ...]] = {
    "clipper": (
        {"policy": {"quantile_regression": True}},
        {"policy": {"increase": 0.25}},
        {"policy": {"increase": 4.0}},
        {"policy": {"backoff": 0.5}},
    ),
    "nexus": (
        {"policy": {"slo_part": 0.35}},
        {"policy": {"slo_part": 0.7}},
        {"policy": {"slo_part": 1.0}},
        {"policy": {"slo_part": 0.7, "deviations": 1.0}},
        {"policy": {"slo_part": 1.0, "deviations": 1.0}},
    ),
    "clockwork": ({"lookahead_ns": 500_000}, {"in_flight": 1}),
    "deferred": tuple({"policy": {"slo_part": part}} for part in (0.0, 0.25, 1.0)),
    "edf": ({"in_flight": 1},),
    "orloj": ({"policy": {"order": "latest"}}, {"policy": {"b_per_ms": 1e-2}}, {"policy": {"b_per_ms": 1e-1}}),
}
"""Settings tried beside the defaults, on `SEARCH_SEEDS`; the best is used."""
SEARCH_SEEDS = (101, 102)
HISTORY_SEED = 977
FEW = 5
"""Least number of seeds for an interval. With fewer, the mean difference replaces its lower limit."""
LIMIT = 0.975
"""Quantile of Student's t for the lower limit of the two-sided 95% interval."""


class Contestant(NamedTuple):
    """A column of the table. With `lengths`, the scheduler knows the execution times of each length.

    `separate`: a scheduler without distributions gets a queue for each application, and for each range of `lengths`.
    """

    scheduler: str
    lengths: bool = False
    searched: bool = False
    separate: bool = False

    @property
    def name(self) -> str:
        """Return the scheduler with `*` for searched settings, `+` for known lengths, and whether queues are apart."""
        return f"{self.scheduler}{'*' * self.searched}{'+' * self.lengths}{', queues' * self.separate}"


CONTESTANTS = (
    *(Contestant(name) for name in (*BLIND, "orloj", OURS)),
    *(Contestant(name, lengths=True) for name in ("orloj", OURS)),
    *(Contestant(name, lengths, separate=True) for name in BLIND for lengths in (False, True)),
    *(Contestant(name, searched=True) for name in (*BLIND, "orloj")),
    Contestant("orloj", lengths=True, searched=True),
)


def run_contest(
    build: Build, rate: float, requests: int, seeds: Sequence[int], searched: bool
) -> dict[str, list[float]]:
    """Return finish rates by contestant and seed. Without `searched`, only default settings run."""
    history = build(rate, HISTORY, HISTORY_SEED)
    workloads = [build(rate, requests, seed) for seed in seeds]
    trials = [build(rate, requests, seed) for seed in SEARCH_SEEDS] if searched else []
    finished: dict[str, list[float]] = {}
    for entry in CONTESTANTS:
        if entry.searched and not searched:
            continue
        knowledge = SchedulerKnowledge(history, entry.lengths)
        overrides = _search_settings(entry, knowledge, trials) if entry.searched else {}
        if entry.searched and not overrides:
            finished[entry.name] = finished[entry._replace(searched=False).name]
        else:
            finished[entry.name] = [
                finish_rate(workload, knowledge, entry.scheduler, overrides, separate=entry.separate)
                for workload in workloads
            ]
    return finished


def _search_settings(entry: Contestant, knowledge: SchedulerKnowledge, trials: Sequence[Workload]) -> Overrides:
    """Return the best of the settings tried; empty if the defaults are best."""

    def mean(overrides: Overrides) -> float:
        return float(np.mean([finish_rate(workload, knowledge, entry.scheduler, overrides) for workload in trials]))

    best, best_rate = {}, mean({})
    for overrides in SEARCHED[entry.scheduler]:
        if (rate := mean(overrides)) > best_rate:
            best, best_rate = overrides, rate
    return best


def margin(finished: Mapping[str, Sequence[float]], lengths: bool) -> tuple[float, str]:
    """Return the smallest lower 95% limit of the finish rate that `horologe` is ahead, and the contestant behind it.

    Differences are paired, on the same arrivals. With fewer than five seeds the mean replaces the limit.
    """
    return min((_lower_limit(values), name) for name, values in _differences(finished, lengths).items())


def _differences(finished: Mapping[str, Sequence[float]], lengths: bool) -> dict[str, Differences]:
    """Return the finish rate of `horologe` minus that of each other contestant, by seed."""
    ours = np.array(finished[Contestant(OURS, lengths).name])
    others = [entry.name for entry in CONTESTANTS if entry.scheduler != OURS and (lengths or not entry.lengths)]
    return {name: ours - np.array(finished[name]) for name in others if name in finished}


def _lower_limit(differences: Differences) -> float:
    count = len(differences)
    if count < FEW:
        return float(differences.mean())
    return float(differences.mean() - _student_factor(count) * differences.std(ddof=1) / count**0.5)


@functools.cache
def _student_factor(count: int) -> float:
    return float(student.ppf(LIMIT, count - 1))
