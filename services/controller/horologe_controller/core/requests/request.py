"""A request as the controller holds it, from its Submit to its one end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from horologe_common.models import ModelSpec

UNPLACED, FINISHED = 0, -1
"""In the place of an action's id: the request is in none yet, or has ended."""


class Request(msgspec.Struct, eq=False):
    """A submit as the controller holds it. `deadline_ns` is when EXEC must have ended.

    `cost_ns` is its part of what its queue takes: what is ahead of others, and demand for its model.
    """

    id: int
    submitter: str
    submit_id: int
    spec: ModelSpec
    model: str
    rows: int
    holder: str
    input_id: int
    arrival_ns: int
    deadline_ns: int
    best_effort: bool
    shape_key: int = 0
    length: int = 0
    application: str = ""
    solo: bool = False
    action_id: int = UNPLACED
    attempts: int = 0
    queued: bool = False
    admitted: bool = False
    cost_ns: int = 0
    look_ns: int = 0
    """When, if it is still queued, it may have waited too long."""
