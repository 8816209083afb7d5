"""When requests are sent: Poisson arrivals, the same for the same seed."""

from __future__ import annotations

import random


def poisson(rate: float, seconds: float, seed: int) -> list[int]:
    """Arrival times in ns from the start, ascending; `rate` is in requests per second.

    Drawn before the run starts, so that a slow generator or server can not move them.
    """
    if rate <= 0 or seconds <= 0:
        raise ValueError(f"rate and seconds: got {rate} and {seconds}, wanted both above 0")
    draw = random.Random(seed).expovariate
    arrivals, at, end = [], draw(rate), seconds
    while at < end:
        arrivals.append(round(at * 1e9))
        at += draw(rate)
    return arrivals
