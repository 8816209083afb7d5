"""Limits of shares that run at the same time: environment and CPUs of each process, by mechanism."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from horologe_common.status import HorologeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class ShareLimit(NamedTuple):
    """How the process of a share is limited to it."""

    environment: Mapping[str, str] = {}
    cpus: tuple[int, ...] = ()
    """CPUs that the process may use. Empty: all."""
    needs_mps: bool = False


class InvalidShares(HorologeError):
    """Shares that the mechanism cannot give."""


def emulated_limits(percents: Sequence[float]) -> list[ShareLimit]:
    """Return no limits: the emulated model itself is as slow as its share."""
    return [ShareLimit() for _ in percents]


def mps_limits(percents: Sequence[float]) -> list[ShareLimit]:
    """Return a part of the multiprocessors for each client of an MPS server (iGniter section 2.1)."""
    return [ShareLimit({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": f"{percent:g}"}, needs_mps=True) for percent in percents]


def cpu_limits(percents: Sequence[float], cpus: Sequence[int] | None = None) -> list[ShareLimit]:
    """Return CPUs of its own for each share. Raises InvalidShares for a share that is no whole number of CPUs."""
    free = sorted(os.sched_getaffinity(0)) if cpus is None else list(cpus)
    total, limits = len(free), []
    for percent in percents:
        wanted = percent * total / 100
        if wanted < 1 or abs(wanted - round(wanted)) > 0.01:
            sizes = ", ".join(f"{100 * count / total:g}" for count in range(1, total + 1))
            raise InvalidShares(f"share: got {percent:g}%, wanted a whole number of the {total} CPUs: {sizes}%")
        if wanted > len(free) + 0.01:
            raise InvalidShares(f"shares: got {sum(percents):g}% together, wanted at most 100%")
        taken, free = free[: round(wanted)], free[round(wanted) :]
        limits.append(ShareLimit(cpus=tuple(taken)))
    return limits


def no_limits(percents: Sequence[float]) -> list[ShareLimit]:
    """Return no limit. Raises InvalidShares unless one share has the whole device."""
    if list(percents) != [100]:
        raise InvalidShares(f"shares: got {list(percents)}%, wanted one of 100%: nothing limits a share")
    return [ShareLimit()]


SHARE_LIMITS: dict[str, Callable[[Sequence[float]], list[ShareLimit]]] = {
    "mps": mps_limits,
    "cpu": cpu_limits,
    "emulated": emulated_limits,
    "whole": no_limits,
}
