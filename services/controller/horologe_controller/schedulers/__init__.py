"""Registry of scheduling policies by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.service.settings import SettingsError
from horologe_controller.core.cluster.cluster import Cluster
from horologe_controller.core.scheduling.planner import Planner
from horologe_controller.schedulers.clipper import Clipper
from horologe_controller.schedulers.clockwork import Clockwork
from horologe_controller.schedulers.deferred import Deferred
from horologe_controller.schedulers.edf import Edf
from horologe_controller.schedulers.fifo import Fifo
from horologe_controller.schedulers.horologe import Horologe
from horologe_controller.schedulers.nexus import Nexus
from horologe_controller.schedulers.orloj.orloj import Orloj

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_controller.core.scheduling.scheduling_policy import SchedulingPolicy
    from horologe_controller.settings import ControllerSettings

SCHEDULERS: dict[str, Callable[[ControllerSettings, Cluster], SchedulingPolicy]] = {
    "clockwork": Clockwork,
    "edf": Edf,
    "clipper": Clipper,
    "nexus": Nexus,
    "deferred": Deferred,
    "fifo": Fifo,
    "horologe": Horologe,
    "orloj": Orloj,
}
"""Value of `controller.scheduler` -> policy. `create_scheduler` builds the scheduler: a `Planner` with this policy."""


def check_scheduler(settings: ControllerSettings) -> None:
    """Raise `SettingsError` for a scheduler that there is not, and for parameters that its policy does not have."""
    if (name := settings.scheduler) not in SCHEDULERS:
        raise SettingsError(f"setting controller.scheduler: got {name!r}, wanted one of {', '.join(SCHEDULERS)}")
    SCHEDULERS[name](settings, Cluster())


def create_scheduler(settings: ControllerSettings, cluster: Cluster) -> Planner:
    """Return a planner with the policy that `settings.scheduler` names. Raises KeyError for an unknown name."""
    return Planner(SCHEDULERS[settings.scheduler](settings, cluster), settings)
