"""Parameters of the policy `horologe`. This module stays interpreted: compiled, a struct has no ranges."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from horologe_controller.core.scheduling.scheduling_policy import PolicyParameters


class HorologeParameters(PolicyParameters, frozen=True):
    """Parameters of `horologe`."""

    advance: Annotated[float, Meta(ge=0, le=1000)] = 2.0
    """How much the value of a batch counts beside its deadline: a batch goes earlier by this many mean batch durations
    if it serves e times as many requests for its time. While requests are lost, batches of cheap models go earlier
    still (docs/scheduling.md). 0: the last start that meets the deadline decides alone."""
