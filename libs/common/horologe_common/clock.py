"""Time in nanoseconds: units, and the real clock."""

import time

NEVER_NS = 1 << 62
"""A time later than any other."""
NS_PER_MS = 1_000_000


def us(value: float) -> int:
    """Return microseconds in nanoseconds."""
    return round(value * 1_000)


def ms(value: float) -> int:
    """Return milliseconds in nanoseconds."""
    return round(value * NS_PER_MS)


def s(value: float) -> int:
    """Return seconds in nanoseconds."""
    return round(value * 1_000_000_000)


monotonic_ns = time.monotonic_ns
"""The real clock. Cores do not read it; they get the time as an argument."""
