"""Mirror of a worker: its clock, its shares, and the models that it has reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.clock import ClockOffset

if TYPE_CHECKING:
    from horologe_common import wire
    from horologe_common.models import ModelSpec, Profile
    from horologe_common.wire import Register
    from horologe_controller.core.cluster.share import Share


class WorkerMirror:
    """A connected worker process. `same_host`: it shares the controller's monotonic clock."""

    def __init__(self, address: str, same_host: bool) -> None:
        self.address = address
        self.same_host = same_host
        self.draining = False
        self.clock = ClockOffset()
        self.shares: dict[int, Share] = {}
        self.models: dict[str, tuple[ModelSpec, Profile | None, str]] = {}
        """Model key -> (spec, profile, reason). Without a profile the worker cannot serve the model, for the reason."""

    @property
    def reachable(self) -> bool:
        """Return whether actions can be sent. A worker on another host needs a measured clock offset first."""
        return (self.same_host or self.clock.is_measured) and not self.draining

    def offset_ns(self) -> int:
        """Return what to add to the controller's time to get the worker's; 0 on the same host."""
        return 0 if self.same_host else self.clock.offset_ns

    def update_models(self, message: Register) -> None:
        """Replace the models by those that the worker reports."""
        most_pages = max((share.pages_total for share in message.shares), default=0)
        self.models = {report.spec.key: _servable(report, most_pages) for report in message.models}


def _servable(report: wire.ModelReport, most_pages: int) -> tuple[ModelSpec, Profile | None, str]:
    """Return (spec, profile, reason); no profile if the model fits none of the worker's shares."""
    pages = report.spec.pages
    if report.profile is None or pages <= most_pages:
        return report.spec, report.profile, report.reason
    return report.spec, None, f"pages: needs {pages} of 16 MiB, the largest share has {most_pages}"
