"""The origin of the times in a user's file, and the longest load that is simulated."""

from __future__ import annotations

from horologe_common.clock import s
from horologe_sim.engine.number_types import MAX_LOAD_NS

HOUR_NS = s(3600)
MAX_LOAD = f"{MAX_LOAD_NS // s(1):,} s (a week)"


def find_origin_ns(first_ns: int, last_ns: int) -> int:
    """Return the time at which the load starts, for the times of the first and the last request of a file.

    0 if the first request is within an hour, else the full second of the first request: such times count from
    elsewhere, for example from 1970. Raises ValueError if the load is longer than `MAX_LOAD_NS`.
    """
    origin_ns = 0 if first_ns <= HOUR_NS else first_ns // s(1) * s(1)
    if last_ns - origin_ns > MAX_LOAD_NS:
        raise ValueError(
            f"seconds: got {(last_ns - origin_ns) / 1e9:,.0f} s until the last request, wanted at most {MAX_LOAD}; "
            "are the times in milliseconds?"
        )
    return origin_ns


def describe_origin(origin_ns: int) -> str:
    """Return a sentence for the user, empty if the times count from the start."""
    return f"times count from the first request, at {origin_ns // s(1)} s" if origin_ns else ""
