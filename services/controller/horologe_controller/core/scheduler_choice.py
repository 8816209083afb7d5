"""The scheduler in force. With `controller.scheduler` auto, a tuner changes it between two turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.service.settings import SettingsError
from horologe_common.setting_ranges import find_outside
from horologe_common.wire import UseScheduler
from horologe_controller.schedulers import AUTO, DEFAULT, SCHEDULERS, check_scheduler

if TYPE_CHECKING:
    from horologe_common.core.instruments import Stats
    from horologe_controller.settings import ControllerSettings

CHANGEABLE = ("admission", "in_flight", "lookahead_ns", "policy")
"""Settings that a tuner may change with the scheduler."""
ALONE = "no tuner compares the schedulers"


class SchedulerChoice:
    """The settings in force, and why. `configured`: the settings of the process."""

    def __init__(self, configured: ControllerSettings, stats: Stats) -> None:
        self.automatic = configured.scheduler == AUTO
        self.settings = configured
        if self.automatic:
            self.settings = msgspec.structs.replace(configured, scheduler=DEFAULT)
        self.reason = ALONE if self.automatic else ""
        self.wanted: ControllerSettings | None = None
        """Settings that the next turn adopts."""
        self.configured = self.settings
        """Settings without the changes of a tuner."""
        self._stats = stats
        if self.automatic:
            stats.create_counters("horologe_scheduler_switches_total", SCHEDULERS)

    @property
    def name(self) -> str:
        """Return the scheduler in force, as operators see it."""
        return f"{AUTO}: {self.settings.scheduler}" if self.automatic else self.settings.scheduler

    def request_change(self, message: UseScheduler) -> None:
        """Use another scheduler from the next turn on. Ignored unless the setting is auto and the message is valid."""
        if not self.automatic or message.scheduler not in SCHEDULERS or set(message.settings) - set(CHANGEABLE):
            return
        try:
            wanted = self.configured.with_scheduler(message.scheduler, message.settings)
            check_scheduler(wanted)
        except (msgspec.ValidationError, SettingsError):
            return
        if find_outside(wanted):
            return
        self.wanted, self.reason = wanted, message.reason

    def request_default(self) -> None:
        """Return to the default: without a tuner, nothing detects that the present scheduler has become worse."""
        self.request_change(UseScheduler(DEFAULT, {}, ALONE))

    def adopt(self) -> ControllerSettings | None:
        """Return the settings to plan with from now on; None if they are the same as before."""
        wanted, self.wanted = self.wanted, None
        if wanted is None or wanted == self.settings:
            return None
        self.settings = wanted
        self._stats.count("horologe_scheduler_switches_total", wanted.scheduler)
        return wanted

    def refresh_stats(self) -> None:
        """Update the gauge of the scheduler in force."""
        if self.automatic:
            for name in SCHEDULERS:
                self._stats.set("horologe_scheduler_active", name, to=name == self.settings.scheduler)
