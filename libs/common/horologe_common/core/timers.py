"""Timers by key. Pure: a core arms them, and its host calls it at the earliest."""

from __future__ import annotations

from typing import Any

from horologe_common.core.indexed_heap import IndexedHeap


class Timers(IndexedHeap[Any, int]):
    """Expiry times in nanoseconds by key; two timers with the same expiry expire in the order of their keys."""

    arm = IndexedHeap.push
    cancel = IndexedHeap.remove
    pop_expired = IndexedHeap.pop_up_to
    next_ns = IndexedHeap.smallest_priority
