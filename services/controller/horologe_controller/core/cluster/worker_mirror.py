"""What the controller knows of a worker: its clock, its shares, and the models that it has reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.clock import ClockOffset

if TYPE_CHECKING:
    from horologe_common import wire
    from horologe_common.models import ModelSpec, Profile
    from horologe_common.wire import Register
    from horologe_controller.core.cluster.share import Share


class Worker:
    """A worker process. `same_host`: its clock is ours."""

    def __init__(self, address: str, same_host: bool) -> None:
        self.address = address
        self.same_host = same_host
        self.draining = False
        self.clock = ClockOffset()
        self.shares: dict[int, Share] = {}
        self.models: dict[str, tuple[ModelSpec, Profile | None, str]] = {}
        """By key; without a profile, and with the reason, those that it cannot serve."""

    @property
    def reachable(self) -> bool:
        """Whether it takes actions, and a window can be told to it: on another host, once its clock is known."""
        return (self.same_host or self.clock.is_measured) and not self.draining

    def offset_ns(self) -> int:
        """Add to our time to get the worker's; hosts with one boot id share a clock."""
        return 0 if self.same_host else self.clock.offset_ns

    def reported(self, message: Register) -> None:
        """Its models are these."""
        most_pages = max((told.pages_total for told in message.shares), default=0)
        self.models = {one.spec.key: _servable(one, most_pages) for one in message.models}


def _servable(report: wire.ModelReport, most_pages: int) -> tuple[ModelSpec, Profile | None, str]:
    """What a worker says of a model; without a profile, and with the reason, if it fits none of its shares."""
    pages = report.spec.pages
    if report.profile is None or pages <= most_pages:
        return report.spec, report.profile, report.reason
    return report.spec, None, f"pages: needs {pages} of 16 MiB, the largest share has {most_pages}"
