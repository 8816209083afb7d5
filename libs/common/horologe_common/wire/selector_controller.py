"""Selector (profiler) - controller."""

from __future__ import annotations

from horologe_common.wire.message import Message


class Submit(Message, frozen=True, tag=30):
    """One piece of work on `model` (a key `name/version`); its inputs are staged at `holder` under `input_id`.

    `solo`: never in a batch with others, so that its time is its own.
    """

    id: int
    model: str
    budget_ns: int
    rows: int
    holder: str
    input_id: int
    best_effort: bool = False
    shape_key: int = 0
    length: int = 0
    application: str = ""
    solo: bool = False


class Outcome(Message, frozen=True, tag=31):
    """The end of a Submit that brings no outputs: refused, late, lost, failed."""

    id: int
    status: int
    reason: str = ""
    retry_after_ns: int = 0
