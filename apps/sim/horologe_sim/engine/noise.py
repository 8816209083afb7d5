"""Noise of execution times around the profile: a lognormal or measured body, a tail, and rare spikes."""

from __future__ import annotations

import csv
import functools
import math
from importlib import resources
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import numpy as np

from horologe_common.clock import ms, us
from horologe_sim.engine.number_types import Duration, Fraction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

DRAWS = 4096
LOW_PARTS = ((-3.09, 0.05), (-1.645, 0.2), (-0.674, 0.35), (0.253, 0.4))
"""Parts of a normal distribution: the lower end, in standard deviations from the mean, and the probability. The first
end is the quantile of 0.001."""
SAMPLES = {"exec": "clockwork_exec_samples.csv", "load": "clockwork_load_samples.csv"}


class Noise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A duration is its profile times a factor (the body), plus now and then an addition (the tail, the spikes)."""

    sigma: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.0
    """Standard deviation of the logarithm of a lognormal factor with median 1."""
    spike_share: Fraction = 0.0
    """Share of operations that also take `spike_ns`."""
    spike_ns: Duration = 0
    tail_share: Fraction = 0.0
    """Share of operations to which an exponential of mean `tail_ns` is added."""
    tail_ns: Duration = 0
    body: Literal["", "measured"] = ""
    """measured: factors are repeated runs of three models (loads of four) over their median (`data/README.md`)."""

    def least_factor(self, lane: str = "exec") -> float:
        """Return the least factor of an EXEC or a LOAD; of lognormal factors, all but one in 1,000 are larger."""
        return self.low_factors(lane)[0][0]

    def low_factors(self, lane: str = "exec") -> list[tuple[float, float]]:
        """Return the lower end of each part of the distribution of factors and its probability, the least first."""
        body = float(measured(lane).min()) if self.body else 1.0
        if not self.sigma:
            return [(body, 1.0)]
        return [(body * math.exp(deviations * self.sigma), part) for deviations, part in LOW_PARTS]


NOISES = {
    "none": Noise(),
    "clockwork": Noise(
        body="measured", tail_share=0.02, tail_ns=round(us(250) / math.log(2)), spike_share=1e-5, spike_ns=ms(20)
    ),
}
"""Noise by name. `clockwork`: the tail of Fig. 9. Half of the exponentials exceed their median, so one operation in 100
is more than 250 us late (the 99th percentile of the figure), and one in 100,000 is 20 ms late."""


class Draws:
    """Durations of one device, by seed: the same numbers in the same order for the same calls."""

    def __init__(self, noise: Noise, seed: Sequence[int]) -> None:
        self._noise = noise
        self._rng = np.random.default_rng(seed)
        self._quiet = noise == Noise()
        self._left: dict[str, list[tuple[float, int]]] = {"exec": [], "load": []}

    def noisy(self, profile_ns: int, lane: str = "exec") -> int:
        """Return a noisy duration for a profiled one, at least 1 ns."""
        if self._quiet:
            return max(1, profile_ns)
        left = self._left["load" if lane == "load" else "exec"]
        if not left:
            left.extend(self._draw(lane))
        factor, more_ns = left.pop()
        return max(1, int(profile_ns * factor) + more_ns)

    def _draw(self, lane: str) -> list[tuple[float, int]]:
        noise, rng = self._noise, self._rng
        factors = np.ones(DRAWS)
        if noise.body:
            factors = rng.choice(measured("load" if lane == "load" else "exec"), DRAWS)
        if noise.sigma:
            factors = factors * rng.lognormal(0.0, noise.sigma, DRAWS)
        more = np.zeros(DRAWS)
        if noise.tail_share:
            more += (rng.random(DRAWS) < noise.tail_share) * rng.exponential(noise.tail_ns, DRAWS)
        if noise.spike_share:
            more += (rng.random(DRAWS) < noise.spike_share) * noise.spike_ns
        return list(zip(factors.tolist(), more.astype(np.int64).tolist(), strict=True))


@functools.cache
def measured(lane: str) -> NDArray[np.float64]:
    """Repeated measurements over the median of their model, of all models together."""
    text = resources.files("horologe_sim").joinpath("data", SAMPLES[lane]).read_text()
    table = np.array([[float(cell) for cell in row] for row in list(csv.reader(text.splitlines()))[1:]])
    factors: NDArray[np.float64] = (table / np.median(table, axis=0)).ravel()
    return factors
