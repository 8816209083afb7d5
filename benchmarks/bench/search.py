"""The highest rate a server carries inside its SLO, by ramp and bisection in bounded time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable


class Trial(msgspec.Struct, frozen=True):
    rate: float
    attained: float


class Capacity(msgspec.Struct, frozen=True):
    """`rate` was carried; `ceiling` was not (0 where nothing failed). All trials, in their order."""

    rate: float
    ceiling: float
    trials: tuple[Trial, ...]


def capacity(
    attained_at: Callable[[float], float],
    start: float,
    *,
    wanted: float = 0.99,
    step: float = 1.5,
    tolerance: float = 0.05,
    trials: int = 16,
    second_chance: bool = True,
) -> Capacity:
    """Search for the highest rate at which `attained_at(rate)` is at least `wanted`.

    From `start` up (or down, where `start` is already too much) by `step`, then by bisection until the two ends
    are within `tolerance` of each other, in at most `trials` measurements. A failed rate is measured once more
    (`second_chance`): one hiccup of a shared machine shall not decide. Assumes that less load is never worse.
    """
    made: list[Trial] = []

    def holds(rate: float) -> bool:
        for _ in range(2 if second_chance else 1):
            if len(made) >= trials:
                return False
            made.append(Trial(rate, attained_at(rate)))
            if made[-1].attained >= wanted:
                return True
        return False

    low, high, rate = 0.0, 0.0, start
    while len(made) < trials and (not low or not high or high / low > 1 + tolerance):
        if holds(rate):
            low = rate
        elif made[-1].rate == rate:
            high = rate
        if not low:
            rate /= step
        else:
            rate = (low * high) ** 0.5 if high else low * step
    return Capacity(low, high, tuple(made))
