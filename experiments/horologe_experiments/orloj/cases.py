"""The 25 cases of ORLOJ's tables 2 to 5, and their 125 rows: each case at five SLOs."""

from __future__ import annotations

import csv
import functools
from importlib import resources

import msgspec

from horologe_experiments.clockwork.catalogue_models import catalogue_models
from horologe_experiments.orloj.length_distributions import LengthDistribution, constant, peaks, short_and_long

SYSTEMS = ("clipper", "nexus", "clockwork", "orloj")
C0_SHARE = 0.7
"""c0 of eq. 3 as a share of the mean solo time. ResNet-50 on a V100 takes 2.61 ms alone, and each further request in a
batch of 16 adds 0.87 ms (Clockwork, appendix A). So 1.74 / 2.61 of the time does not depend on the batch."""
BART_MS = 774.66
"""Mean solo time of BART on CNN (table 1), which the synthetic cases use (section 5.3)."""
WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight")
STATIC = {"inception-imagenet": "inceptionv3", "resnet-imagenet": "resnet50_v1"}


class Case(msgspec.Struct, frozen=True):
    """Execution times of a case. All times are of requests that run alone."""

    name: str
    table: int
    mean_ms: float
    sigmas: tuple[float, ...] = ()
    """Standard deviations of the peaks, from the shortest: tables 2 and 3."""
    p99_ms: float = 0.0
    """Published P99: table 5. 0: the P99 of the distribution."""
    profile_ms: tuple[float, ...] = ()
    """Times of batches of 1, 2, 4, 8, 16: table 4, where all requests are alike."""

    def applications(self) -> tuple[LengthDistribution, ...]:
        """Return the length distributions of the applications. The mean length is 1,000."""
        if self.profile_ms:
            return constant()
        if self.sigmas:
            return peaks(self.sigmas)
        return short_and_long((self.p99_ms / self.mean_ms - C0_SHARE) / (1 - C0_SHARE))


class TableRow(msgspec.Struct, frozen=True):
    """A row of tables 2 to 5. `paper` holds the finish rates of `SYSTEMS`."""

    case: Case
    slo_x_p99: float
    paper: tuple[float, float, float, float]

    @property
    def name(self) -> str:
        """Return the case and the multiple of its P99."""
        return f"{self.case.name} x{self.slo_x_p99:g}"


@functools.cache
def table_rows() -> tuple[TableRow, ...]:
    """Return all 125 rows in the order of the paper."""
    cases_by_name = {case.name: case for case in all_cases()}
    return tuple(
        TableRow(cases_by_name[line["case_id"]], float(line["slo_x_p99"]), _finish_rates(line))
        for line in _lines("orloj_finish_rates.csv")
    )


def _finish_rates(line: dict[str, str]) -> tuple[float, float, float, float]:
    clipper, nexus, clockwork, orloj = (float(line[system]) for system in SYSTEMS)
    return clipper, nexus, clockwork, orloj


@functools.cache
def all_cases() -> tuple[Case, ...]:
    """Return all 25 cases in the order of the paper."""
    return (*_deviations(), *_modalities(), *_static(), *_real())


def _deviations() -> list[Case]:
    """Return the cases of table 2: two peaks. The name holds one deviation for both peaks, or short/long."""
    result = []
    for name in ("0.5", "1", "2", "2/0.5", "0.5/2"):
        sigmas = [float(sigma) for sigma in name.split("/")]
        result.append(Case(f"std-{name}", 2, BART_MS, (sigmas[0], sigmas[-1])))
    return result


def _modalities() -> list[Case]:
    """Return the cases of table 3: peaks of deviation 1."""
    return [Case(f"{word}-modal", 3, BART_MS, (1.0,) * (index + 1)) for index, word in enumerate(WORDS)]


def _static() -> list[Case]:
    """Return the cases of table 4: the batch times of Clockwork's appendix A."""
    result = []
    for name, variety in zip(STATIC, catalogue_models(STATIC.values()), strict=True):
        times = tuple(variety.exec_ms.values())
        result.append(Case(name, 4, times[0], profile_ms=times))
    return result


def _real() -> list[Case]:
    """Return the cases of table 5: mean and P99 of table 1."""
    return [
        Case(line["case_id"], 5, float(line["mean_exec_ms"]), p99_ms=float(line["p99_exec_ms"]))
        for line in _lines("orloj_workloads.csv")
    ]


def _lines(name: str) -> list[dict[str, str]]:
    text = resources.files("horologe_experiments").joinpath("data", name).read_text()
    return list(csv.DictReader(text.splitlines()))
