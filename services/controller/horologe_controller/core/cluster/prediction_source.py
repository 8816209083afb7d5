"""What a predicted duration was made of, for people who ask why a request was refused or late."""

from __future__ import annotations

from typing import Literal

import msgspec


class PredictionSource(msgspec.Struct, frozen=True):
    """What a prediction was made of. Durations are in ns."""

    kind: Literal["profile", "guess", "executions", "trial", "distribution"] = "profile"
    """profile: the profile, times `pace_permille`. guess: the same, of a model that has never been measured.
    executions: the recent ones, `samples`. trial: less than these say, to find out whether they still hold.
    distribution: the durations of its kind of request, as the profiler has measured them."""
    samples: list[int] = []
    """Recent executions that count, the oldest first."""
    left_out_ns: int = 0
    """A recent execution that does not count, because it alone took much longer; 0: there is none."""
    pace_permille: int = 1000
    """The prediction, in thousandths of the profile."""
