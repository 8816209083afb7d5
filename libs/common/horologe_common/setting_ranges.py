"""Ranges of the numbers in settings: declared by `Meta` on the field, else that of the field's unit. Pure."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, get_args

import msgspec

from horologe_common.clock import ms

NAME_PATTERN = r"^[A-Za-z0-9._-]{1,64}\Z"
"""Names of instances: they are parts of addresses and of file names."""
DURATIONS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "min": 60_000_000_000}
SIZES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


class Range(NamedTuple):
    """Least and greatest value of a setting. `is_open`: the value must be above `low`."""

    low: float
    high: float
    is_open: bool = False

    def contains(self, value: float) -> bool:
        """Return whether the value is in the range. NaN is in none."""
        return math.isfinite(value) and (self.low < value if self.is_open else self.low <= value) and value <= self.high


DURATION = Range(ms(1), 100_000 * DURATIONS["min"])
"""A shorter timeout or interval would keep a processor busy, or let everything expire."""
SIZE = Range(1, 1 << 44)
COUNT = Range(1, 1_000_000_000)
RATE = Range(0, 1e9)


def range_of(name: str, kind: Any) -> Range | None:
    """Return the range of a field of settings, None if it is no number. `kind`: its type, perhaps `Annotated`."""
    base, *metas = get_args(kind) if hasattr(kind, "__metadata__") else (kind,)
    if base not in (int, float):
        return None
    default = DURATION if name.endswith("_ns") else SIZE if name.endswith("_bytes") else COUNT
    low, high, is_open = default if base is int else RATE
    for meta in metas:
        if isinstance(meta, msgspec.Meta):
            if meta.ge is not None or meta.gt is not None:
                low, is_open = (meta.ge, False) if meta.ge is not None else (meta.gt or 0, True)
            high = high if meta.le is None else meta.le
    return Range(low, high, is_open)


def describe_range(name: str, limits: Range) -> str:
    """Return a range in the unit of the field: `1ms to 10s`, `more than 0, at most 1`."""
    texts = [format_number(name, value) for value in limits[:2]]
    return f"more than {texts[0]}, at most {texts[1]}" if limits.is_open else f"{texts[0]} to {texts[1]}"


def format_number(name: str, value: float) -> str:
    """Return a number as it is written in settings, with the largest unit that leaves a whole number."""
    units = DURATIONS if name.endswith("_ns") else SIZES if name.endswith("_bytes") else None
    if units is None or not value:
        return f"{value:g}" if isinstance(value, float) else str(value)
    size, unit = max((size, unit) for unit, size in units.items() if int(value) % size == 0)
    return f"{int(value) // size}{unit}"
