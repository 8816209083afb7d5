"""Relief: which share loads a model whose shares lose requests, and which model it may evict for it.

Where one model fits in each share, most shares may hold a cheap model, because it was asked for first, and have little
work. Other models lose requests then. Shares with the cheap model must evict it, although it is asked for all the time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from horologe_common.clock import s
from horologe_controller.core.traffic import MEMORY_NS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.traffic import Traffic

CALM_PART = 0.25
"""Losses of a share that relieves others, as a part of theirs."""
SPARE_PART = 0.75
"""Part of their time that shares may be busy after they have taken over the work for a model: `CAPACITY_PART` of
`demand.py`. With more, some workloads gain and more lose (experiments/results/schedulers.md)."""
IDLE_NS = s(1)
"""Time without a request after which a model may be evicted for one whose shares lose requests."""
SETTLED_NS = s(3)
"""Time after a LOAD of a model in which none of its copies in use is spare. Without, models take shares from each other
in turn (experiments/results/schedulers.md)."""


def excess_losses(own: float, total: float) -> float:
    """Return the losses of a share, divided by the square of one more than those of all others."""
    return own / (1.0 + max(0.0, total - own)) ** 2


def is_calm(traffic: Traffic, now_ns: int, share: Share, holders: Iterable[Share]) -> bool:
    """Return whether the share loses far fewer requests than each of the holders of a model."""
    least = min([traffic.share_losses(now_ns, holder) for holder in holders])
    return traffic.share_losses(now_ns, share) < CALM_PART * least


def is_spare(traffic: Traffic, now_ns: int, share: Share, model: str, holders: Mapping[Share, bool]) -> bool:
    """Return whether the share can do without the model. `holders`: its shares, and whether it is loaded there.

    It is idle, or has not needed a LOAD lately, and its other shares have time for what this one does. Before work has
    been recorded for a while, only idle models are spare.
    """
    asked = traffic.of_model(model)
    if now_ns - asked.last_ns > IDLE_NS:
        return True
    if asked.loaded_ns is not None and now_ns - asked.loaded_ns < SETTLED_NS:
        return False
    others = [other for other, loaded in holders.items() if loaded and other is not share]
    if (age_ns := traffic.work_age_ns(now_ns)) < MEMORY_NS:
        return False
    most_ns = SPARE_PART * MEMORY_NS * (1.0 - math.exp(-age_ns / MEMORY_NS))
    free_ns = sum([max(0.0, most_ns - traffic.work_ns(now_ns, other)) for other in others])
    return bool(others) and free_ns >= traffic.work_ns(now_ns, share, model)
