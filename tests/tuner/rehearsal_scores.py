"""Scores of a rehearsal."""

from __future__ import annotations

from typing import Any

from horologe_tuner.core.rehearsal.rehearsal_documents import RehearsalScores

SENT = (100,) * 19


def scores_of(sent_each: tuple[int, ...] = SENT, cpu_s: float = 0.0, **in_time: Any) -> RehearsalScores:
    """Return scores. An int stands for as many in each block."""
    blocks = {
        name: (value,) * len(sent_each) if isinstance(value, int) else tuple(value) for name, value in in_time.items()
    }
    return RehearsalScores(sent_each, blocks, cpu_s)
