"""Traits of a workload of the tournament: drawn by seed, or written down for the fixed workloads."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from horologe_common.clock import ms

Rng = np.random.Generator

LARGEST_CLUSTER, MOST_MODELS = 20, 1000
WHOLE = 1000
"""Times of faults are in thousandths of the measured time."""


class DeviceFault(NamedTuple):
    """A device is lost, or takes `slowness` times as long. Times are in thousandths of the measured time."""

    device: int
    begin: int
    end: int
    slowness: float = 0.0
    """0: the device is lost, with what it holds and runs."""


class Slo(msgspec.Struct, frozen=True):
    """SLO of each model, log-uniform between two bounds: milliseconds, or multiples of its time alone."""

    unit: Literal["ms", "times"]
    low: float
    high: float
    beyond_ns: int = 0
    """Added to every SLO. In random workloads it is the round trip between the controller and a device and 1 ms, since
    otherwise no request could be in time in many of them."""


class Traits(msgspec.Struct, frozen=True):
    """All that a workload is drawn from. `build` in `workload.py` turns it into requests."""

    name: str
    seed: int
    devices: tuple[float, ...] = (1.0,) * 4
    """Execution times of each device, as multiples of the profile."""
    faults: tuple[DeviceFault, ...] = ()
    models: int = 100
    catalogue: Literal["clockwork", "nexus", "dynamic", "mixed"] = "clockwork"
    skew: float = 1.0
    """Exponent of the popularity of models: the n-th gets a share in proportion to n ** -skew."""
    memory: float = 1.0
    """Part of all models' pages that a device holds."""
    slo: Slo = Slo("ms", 100.0, 100.0)
    arrivals: Literal["poisson", "gamma", "bursts", "azure", "nasa", "closed"] = "nasa"
    cv: float = 1.0
    """Variance of the gaps over their squared mean (gamma), or rate of a burst over the rest (bursts)."""
    load: float = 0.8
    """Requests, as a part of what all devices could serve in the best batches that the SLOs permit."""
    best_effort: float = 0.0
    """Share of requests without a deadline."""
    known: Literal["lengths", "applications", "nothing"] = "lengths"
    """Attributes of requests for dynamic models: application and length, the application alone, or neither."""
    network_ns: int = ms(0.06)
    """Delay of a message between the controller and a device, one way."""
    noise: Literal["none", "clockwork", "wide"] = "clockwork"

    def summary(self) -> str:
        """Return the traits in a line of a table."""
        parts = [
            f"{len(self.devices)} devices" + ("" if len(set(self.devices)) == 1 else ", unlike"),
            f"{self.models} {self.catalogue}",
            f"skew {self.skew:.1f}",
            f"memory {self.memory:.0%}",
            f"SLO {self.slo.low:.3g}-{self.slo.high:.3g} {self.slo.unit}",
            f"{self.arrivals} {self.cv:.2g}" if self.arrivals in ("gamma", "bursts") else self.arrivals,
            f"load {self.load:.2f}",
            f"network {self.network_ns / 1e6:.2g} ms",
        ]
        if self.best_effort:
            parts.append(f"best effort {self.best_effort:.0%}")
        if self.faults:
            parts.append(f"{len(self.faults)} faults")
        if self.catalogue in ("dynamic", "mixed"):
            parts.append(f"known: {self.known}")
        return ", ".join(parts)


def draw_traits(seed: int) -> Traits:
    """Return the random workload of a seed. No policy may be developed on seeds above 20,000: they are for the test."""
    rng = np.random.default_rng([16, seed])
    devices = round(log_uniform(rng, 1, LARGEST_CLUSTER))
    catalogue = pick(rng, {"clockwork": 0.45, "mixed": 0.25, "dynamic": 0.2, "nexus": 0.1})
    arrivals = pick(rng, {"poisson": 0.2, "gamma": 0.2, "bursts": 0.2, "azure": 0.15, "nasa": 0.15, "closed": 0.1})
    if arrivals == "closed":  # clients of dynamic models would need a list of inputs each
        catalogue = "clockwork" if catalogue in ("mixed", "dynamic") else catalogue
    most = {"dynamic": 20, "mixed": 200}.get(catalogue, MOST_MODELS)
    unlike = rng.random() < 0.3
    traits = Traits(
        str(seed),
        seed,
        devices=tuple(float(rng.uniform(1, 3)) if unlike else 1.0 for _ in range(devices)),
        faults=_draw_faults(rng, devices),
        models=round(log_uniform(rng, 1, most)),
        catalogue=catalogue,  # type: ignore[arg-type]
        skew=float(rng.uniform(0, 1.5)),
        memory=1.0 if rng.random() < 0.5 else float(rng.uniform(0.1, 1)),
        slo=_draw_slo(rng),
        arrivals=arrivals,  # type: ignore[arg-type]
        cv=log_uniform(rng, 1, 8) if arrivals == "gamma" else float(rng.uniform(2, 6)),
        load=log_uniform(rng, 0.2, 3),
        best_effort=float(rng.uniform(0.05, 0.5)) if rng.random() < 0.2 else 0.0,
        known=pick(rng, {"lengths": 0.5, "applications": 0.3, "nothing": 0.2}),  # type: ignore[arg-type]
        network_ns=ms(0.06) if rng.random() < 0.5 else ms(log_uniform(rng, 0.06, 10)),
        noise=pick(rng, {"clockwork": 0.7, "none": 0.1, "wide": 0.2}),  # type: ignore[arg-type]
    )
    slo = msgspec.structs.replace(traits.slo, beyond_ns=2 * traits.network_ns + ms(1))
    return msgspec.structs.replace(traits, slo=slo)


def log_uniform(rng: Rng, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def pick(rng: Rng, shares: dict[str, float]) -> str:
    """Return a key with the probability that is its value."""
    return str(rng.choice(list(shares), p=list(shares.values())))


def _draw_slo(rng: Rng) -> Slo:
    unit, least, most = ("times", 1.5, 50.0) if rng.random() < 0.6 else ("ms", 10.0, 500.0)
    ends = sorted(log_uniform(rng, least, most) for _ in range(2))
    return Slo(unit, ends[0], ends[1] if rng.random() < 0.5 else ends[0])  # type: ignore[arg-type]


def _draw_faults(rng: Rng, devices: int) -> tuple[DeviceFault, ...]:
    """Return no fault in 7 of 10 workloads, else one fault on each of up to a third of the devices."""
    if rng.random() < 0.7:
        return ()
    faulty = rng.permutation(devices)[: 1 + int(rng.integers(0, 1 + devices // 3))]
    faults = []
    for device in faulty.tolist():
        begin, end = sorted(rng.integers(0, WHOLE, 2).tolist())
        slowness = 0.0 if rng.random() < 0.4 and devices > 1 else float(rng.uniform(1.2, 5))
        faults.append(DeviceFault(device, begin, end + 1, slowness))
    return tuple(faults)


_BASE = Traits("", 0)
"""100 models of appendix A, popularity 1 / rank, four devices; the rate follows a day of NASA's server."""
_SLOW = (DeviceFault(0, 200, WHOLE + 1, 3.0),)

_CHANGES: dict[str, dict[str, Any]] = {
    "slo-100ms": {"load": 0.8},
    "slo-100ms-burst": {"load": 0.8, "arrivals": "bursts", "cv": 2.5},
    "slo-50ms": {"load": 0.5, "slo": Slo("ms", 50, 50)},
    "slow-device": {"load": 0.6, "faults": _SLOW},
    "slow-network": {"load": 0.5, "slo": Slo("ms", 50, 50), "network_ns": ms(2)},
    "slo-25ms": {"load": 0.6, "slo": Slo("ms", 25, 25)},
    "half-fits": {"load": 0.6, "memory": 0.5},
}
FIXED: dict[str, Traits] = {
    name: msgspec.structs.replace(_BASE, name=name, seed=7000 + number, **changes)
    for number, (name, changes) in enumerate(_CHANGES.items())
}
"""Fixed workloads: loads, SLOs and disturbances that single policies were seen to handle badly."""


def find_traits(name: str) -> Traits:
    """Return the traits of a fixed workload, or those of a seed. Raises ValueError for any other name."""
    if name in FIXED:
        return FIXED[name]
    if not name.isdecimal():
        raise ValueError(f"workloads: got {name!r}, wanted a seed or one of {', '.join(FIXED)}")
    return draw_traits(int(name))
