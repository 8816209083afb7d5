"""Types of numbers in a scenario, with their bounds."""

from __future__ import annotations

from typing import Annotated

import msgspec

from horologe_common.clock import s

MAX_LOAD_NS = s(7 * 24 * 3600)
"""Longest simulated load, a week. An idle week takes minutes to simulate."""

Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
Duration = Annotated[int, msgspec.Meta(ge=0, le=MAX_LOAD_NS)]
"""In nanoseconds."""
LoadDuration = Annotated[int, msgspec.Meta(ge=1, le=MAX_LOAD_NS)]
"""In nanoseconds."""
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_LOAD_NS / 1e6)]
PositiveMilliseconds = Annotated[float, msgspec.Meta(gt=0, le=MAX_LOAD_NS / 1e6)]
Megabytes = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Rate = Annotated[float, msgspec.Meta(ge=0, le=1e7)]
"""Requests per second."""
Skew = Annotated[float, msgspec.Meta(ge=-100, le=100)]
Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]
Percent = Annotated[float, msgspec.Meta(gt=0, le=100)]
Name = Annotated[str, msgspec.Meta(min_length=1)]
