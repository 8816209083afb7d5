"""Profiles of stages: the time of a batch by model, hardware type and batch size (InferLine section 4.1).

A profile has one time for each batch size. For a model whose time depends on its input, it also has the distribution of
one row's time. The batch then takes c0 + k * (time of its longest row), as in ORLOJ section 4.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from horologe_common.model_limits import DURATION_MAX_NS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


RANKS = 64
"""Equally likely times of a row by which the estimator approximates a distribution. 64: the 0.99 quantile of a row lies
in the last rank, and the estimator's table still fits into the second-level cache."""
PADDED_LIMIT = 4096
"""Largest batch size of a profile."""


class StageProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Times of one model on one hardware type. `latency_ns`: batch size -> nanoseconds.

    A batch of any other size takes as long as the next larger size of the profile: workers pad it to that size.
    """

    model: str
    hardware: str
    latency_ns: dict[int, int]
    base_ns: int = 0
    """Time of a batch that does not depend on its rows (c0). Used with `row_ns` only."""
    row_ns: tuple[int, ...] = ()
    """Time that a row adds, ascending, at `RANKS` equally likely ranks. Empty: times do not depend on the input."""

    def validate(self) -> None:
        """Raise ValueError, with the field, the value and what was wanted, if the profile is invalid."""
        place = f"profile of {self.model} on {self.hardware}: "
        if not (self.model and self.hardware):
            raise ValueError(f"{place}got an empty name, wanted a model and a hardware type")
        if not self.latency_ns or not all(1 <= size <= PADDED_LIMIT for size in self.latency_ns):
            raise ValueError(f"{place}batch sizes: got {list(self.latency_ns)}, wanted 1 to {PADDED_LIMIT}")
        if 1 not in self.latency_ns:
            raise ValueError(f"{place}batch sizes: got {list(self.latency_ns)}, wanted 1 among them")
        for size, time_ns in self.latency_ns.items():
            if not 0 < time_ns <= DURATION_MAX_NS:
                raise ValueError(f"{place}latency_ns: {size}: got {time_ns}, wanted 1 to {DURATION_MAX_NS}")
        if not 0 <= self.base_ns <= DURATION_MAX_NS:
            raise ValueError(f"{place}base_ns: got {self.base_ns}, wanted 0 to {DURATION_MAX_NS}")
        row_ns = list(self.row_ns)
        bounded = all(0 <= time_ns <= DURATION_MAX_NS for time_ns in row_ns)
        if row_ns and (len(row_ns) != RANKS or not bounded or row_ns != sorted(row_ns)):
            raise ValueError(f"{place}row_ns: wanted {RANKS} ascending times of 0 to {DURATION_MAX_NS} ns")

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The profiled batch sizes, ascending."""
        return tuple(sorted(self.latency_ns))

    def latency_table(self, batch: int) -> np.ndarray:
        """Return the times of batches of 0 to `batch` rows as int64 (batch + 1, ranks); entry 0 is unused.

        The second index is the rank of the longest row. Without `row_ns` there is one rank. Raises ValueError if
        `batch` is larger than the profile's largest size.
        """
        sizes = self.batch_sizes
        if not 1 <= batch <= sizes[-1]:
            raise ValueError(f"batch of {self.model} on {self.hardware}: got {batch}, wanted 1 to {sizes[-1]}")
        places = np.searchsorted(sizes, np.arange(1, batch + 1))
        if not self.row_ns:
            times = np.array([self.latency_ns[size] for size in sizes], np.int64)
            return np.concatenate(([0], times[places]))[:, np.newaxis]
        padded = np.concatenate(([0], np.array(sizes)[places]))
        return np.array(np.maximum(self.base_ns + np.outer(padded, self.row_ns), 1), np.int64)

    def mean_latency_ns(self, batch: int) -> float:
        """Return the expected time of a full batch."""
        times = self.latency_table(batch)[batch]
        below = (np.arange(times.size + 1) / times.size) ** batch
        return float(np.diff(below) @ times)

    def throughput(self, batch: int) -> float:
        """Return the calls per second of one replica with full batches (mu in the paper)."""
        return batch * 1e9 / self.mean_latency_ns(batch)


Profiles = dict[str, dict[str, StageProfile]]
"""Model -> hardware type -> profile."""


def collect_profiles(profiles: Iterable[StageProfile]) -> Profiles:
    """Return the profiles by model and hardware type. Raises ValueError for an invalid one; see `add_profiles`."""
    collected: Profiles = {}
    add_profiles(collected, profiles)
    return collected


def add_profiles(known: Profiles, profiles: Iterable[StageProfile]) -> None:
    """Add valid profiles to `known`. The last of two for one model and hardware type counts."""
    for profile in profiles:
        profile.validate()
        known.setdefault(profile.model, {})[profile.hardware] = profile


def decode_profiles(document: bytes) -> Profiles:
    """Return the profiles of a JSON list. Raises ValueError for an invalid one."""
    try:
        return collect_profiles(msgspec.json.decode(document, type=list[StageProfile]))
    except msgspec.MsgspecError as error:
        raise ValueError(f"profiles: {error}") from error


def encode_profiles(profiles: Profiles) -> bytes:
    """Return the profiles as a JSON list."""
    rows = [profile for by_hardware in profiles.values() for profile in by_hardware.values()]
    return msgspec.json.format(msgspec.json.encode(rows))


def measured_profile(model: str, hardware: str, shares: Iterable[Mapping[int, int]]) -> StageProfile | None:
    """Return a profile from the EXEC times that shares of this hardware type report (`ShareState.exec_ns`).

    Of several shares the longest time of each batch size counts. Return None without any time.
    """
    longest: dict[int, int] = {}
    for exec_ns in shares:
        for size, time_ns in exec_ns.items():
            longest[size] = max(longest.get(size, 1), time_ns)
    return StageProfile(model, hardware, longest) if longest else None
