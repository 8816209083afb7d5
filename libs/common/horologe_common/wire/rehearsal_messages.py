"""Controller - tuner: recent requests, the cluster that served them, and the scheduler to use from now on."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from horologe_common.wire.controller_worker import ModelReport
from horologe_common.wire.holder_messages import Distributions
from horologe_common.wire.message import Message

Setting: TypeAlias = bool | int | float | str | dict[str, bool | int | float | str]
"""Value of a setting of the controller. A table: the parameters of its policy."""


class TracedRequest(Message, frozen=True):
    """A request as it arrived at the controller."""

    model: int
    """Index in `RequestTrace.models`."""
    arrival_ns: int
    budget_ns: int
    """Time until its deadline at the client."""
    rows: int = 1
    length: int = 0
    application: str = ""
    best_effort: bool = False


class RequestTrace(Message, frozen=True, tag=67):
    """The requests since the trace before, from a controller with `controller.scheduler` auto to its tuner."""

    models: tuple[str, ...]
    """Keys `name/version`."""
    requests: tuple[TracedRequest, ...]
    left_out: int = 0
    """Further requests, beyond the limit of a message."""


class DescribeScheduling(Message, frozen=True, tag=68):
    """Ask the controller for the state of its scheduling. `models`: keys of the models to describe."""

    models: tuple[str, ...]


class ScheduledModel(Message, frozen=True):
    """A model with the times of the fastest share: recent medians, or the profile where there are none.

    Distributions are those of the profiler, multiplied by the recent pace of the fastest share.
    """

    report: ModelReport
    distributions: Distributions | None = None
    """None: its time does not depend on the input."""


class ScheduledShare(Message, frozen=True):
    """A share of a device. Its execution times are `factor` times those of the models."""

    pages: int
    factor: float = 1.0
    models: tuple[int, ...] = ()
    """Indices of the models that it can run. Empty: all."""
    resident: tuple[int, ...] = ()
    """Indices of the models that are loaded, least recently used first, and of those that are being loaded."""


class SchedulingState(Message, frozen=True, tag=69):
    """Answer to DescribeScheduling."""

    settings: dict[str, Setting]
    """Settings of the controller that are in force."""
    models: tuple[ScheduledModel, ...]
    shares: tuple[ScheduledShare, ...]
    dispatch_ns: int = 0
    """Time from a decision until an idle device begins."""
    return_ns: int = 0
    """Time from the end of an EXEC until the controller has its Result."""


class UseScheduler(Message, frozen=True, tag=79):
    """Use this scheduler from now on, from a tuner to a controller with `controller.scheduler` auto."""

    scheduler: str
    settings: dict[str, Setting] = msgspec.field(default_factory=dict)
    """Settings of the controller that differ from the configured ones."""
    reason: str = ""


RehearsalMessage: TypeAlias = RequestTrace | DescribeScheduling | SchedulingState | UseScheduler
