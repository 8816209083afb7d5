"""Interface between the selector core and the drivers of pipelines. Implementations: `drivers/`.

A driver executes the code of one pipeline at the address `driver_address(pipeline)`. The core and the driver exchange
the messages of `wire/driver_messages.py`, and the messages below, which never leave the process of the selector.
"""

from __future__ import annotations

import msgspec

from horologe_common.models import ModelSpec

CALLS_LIMIT = 256
"""Maximum number of calls in one query of a pipeline. The query fails if its driver makes more."""


class PipelineDefinition(msgspec.Struct, frozen=True):
    """A pipeline of the repository. `reason`: why it cannot be served; empty if it can."""

    spec: ModelSpec
    file: str
    reason: str = ""
    file_state: tuple[int, ...] = ()
    """Changes whenever the file is written. Then its driver is started again, even if the content is the same."""


class PipelinesRead(msgspec.Struct, frozen=True):
    """All pipelines of the repository, to the core whenever they have changed."""

    definitions: tuple[PipelineDefinition, ...]


class DriverEnded(msgspec.Struct, frozen=True):
    """The driver's process has ended; it is started again. `run`: the run that it executed at its end, 0 if none."""

    pipeline: str
    reason: str
    run: int = 0


class KillDriver(msgspec.Struct, frozen=True):
    """End the driver's process at once, because it hangs."""

    pipeline: str
    reason: str


def driver_address(pipeline: str) -> str:
    return f"driver/{pipeline}"
