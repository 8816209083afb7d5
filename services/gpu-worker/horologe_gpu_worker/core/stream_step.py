"""One step of a stream, as the worker's core, its lanes and the process of a model name it."""

from __future__ import annotations

from typing import NamedTuple


class Step(NamedTuple):
    """Step `number` (from 1) of a stream, which its `owner` has numbered `stream`."""

    owner: str
    stream: int
    number: int
