"""The 25 cases of ORLOJ's tables 2 to 5, and their 125 rows: a case at each of five SLOs."""

from __future__ import annotations

import csv
import functools
from importlib import resources

import msgspec

from horologe_experiments.orloj.length_distributions import Application, constant, peaks, short_and_long
from horologe_sim.scenario.clockwork_models import catalogue_models

SYSTEMS = ("clipper", "nexus", "clockwork", "orloj")
C0_SHARE = 0.7
"""c0 of eq. 3 in mean solo times: ResNet-50 on a V100 takes 2.61 ms alone and 0.87 ms for one more in a batch of 16
(Clockwork, appendix A), so 1.74 / 2.61 of it does not depend on the batch."""
BART_MS = 774.66
"""Mean solo time of BART on CNN (table 1), which the synthetic cases use (section 5.3)."""
WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight")
STATIC = {"inception-imagenet": "inceptionv3", "resnet-imagenet": "resnet50_v1"}


class Case(msgspec.Struct, frozen=True):
    """What a request costs. All times are of requests alone."""

    name: str
    table: int
    mean_ms: float
    sigmas: tuple[float, ...] = ()
    """Of the peaks, from the shortest: tables 2 and 3."""
    p99_ms: float = 0.0
    """As published: table 5. 0: what the distribution has."""
    profile_ms: tuple[float, ...] = ()
    """Of batches of 1, 2, 4, 8, 16: table 4, where requests are all alike."""

    def applications(self) -> tuple[Application, ...]:
        """How long requests are, by application. A mean length is 1,000."""
        if self.profile_ms:
            return constant()
        if self.sigmas:
            return peaks(self.sigmas)
        return short_and_long((self.p99_ms / self.mean_ms - C0_SHARE) / (1 - C0_SHARE))


class Row(msgspec.Struct, frozen=True):
    """A line of tables 2 to 5. `paper`: finish rates of `SYSTEMS`."""

    case: Case
    slo_x_p99: float
    paper: tuple[float, float, float, float]

    @property
    def name(self) -> str:
        return f"{self.case.name} x{self.slo_x_p99:g}"


@functools.cache
def rows() -> tuple[Row, ...]:
    """All 125, in the order of the paper."""
    known = {case.name: case for case in cases()}
    return tuple(
        Row(known[line["case_id"]], float(line["slo_x_p99"]), tuple(float(line[one]) for one in SYSTEMS))  # type: ignore[arg-type]
        for line in _lines("orloj_finish_rates.csv")
    )


@functools.cache
def cases() -> tuple[Case, ...]:
    """All 25, in the order of the paper."""
    return (*_deviations(), *_modalities(), *_static(), *_real())


def _deviations() -> list[Case]:
    """Table 2: two peaks; the name says the deviation of both, or that of the short one and that of the long one."""
    found = []
    for name in ("0.5", "1", "2", "2/0.5", "0.5/2"):
        sigmas = [float(one) for one in name.split("/")]
        found.append(Case(f"std-{name}", 2, BART_MS, (sigmas[0], sigmas[-1])))
    return found


def _modalities() -> list[Case]:
    """Table 3: peaks of deviation 1."""
    return [Case(f"{word}-modal", 3, BART_MS, (1.0,) * (place + 1)) for place, word in enumerate(WORDS)]


def _static() -> list[Case]:
    """Table 4: the batch times of Clockwork's appendix A."""
    found = []
    for name, variety in zip(STATIC, catalogue_models(STATIC.values()), strict=True):
        times = tuple(variety.exec_ms.values())
        found.append(Case(name, 4, times[0], profile_ms=times))
    return found


def _real() -> list[Case]:
    """Table 5: mean and P99 of table 1."""
    return [
        Case(line["case_id"], 5, float(line["mean_exec_ms"]), p99_ms=float(line["p99_exec_ms"]))
        for line in _lines("orloj_workloads.csv")
    ]


def _lines(name: str) -> list[dict[str, str]]:
    text = resources.files("horologe_experiments").joinpath("data", name).read_text()
    return list(csv.DictReader(text.splitlines()))
