"""Requests of tuners: plans, changes of the scheduler, and descriptions of the scheduling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.core.protocol import Out
from horologe_common.wire import DescribeScheduling, ResourcePlan, UseScheduler
from horologe_controller.core.cluster.planned_models import apply_plan
from horologe_controller.core.scheduling_state import describe_scheduling

if TYPE_CHECKING:
    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.event_recorder import EventRecorder
    from horologe_controller.core.scheduler_choice import SchedulerChoice


class TunerRequests:
    """Carries out the requests of tuners. A tuner gets events from its first plan on."""

    def __init__(self, cluster: Cluster, events: EventRecorder, choice: SchedulerChoice) -> None:
        self._cluster = cluster
        self._events = events
        self._choice = choice

    def carry_out(
        self, now_ns: int, tuner: str, message: ResourcePlan | DescribeScheduling | UseScheduler
    ) -> list[Out]:
        """Adopt a plan or a scheduler. Return the description of the scheduling, if that is the request.

        A plan without a number only subscribes to events.
        """
        if isinstance(message, DescribeScheduling):
            return [Out(tuner, describe_scheduling(now_ns, self._cluster, self._choice.configured, message.models))]
        if isinstance(message, UseScheduler):
            self._choice.request_change(message)
        else:
            self._events.add_tuner(now_ns, tuner)
            if message.number:
                apply_plan(self._cluster, message)
        return []

    def remove_tuner(self, address: str) -> None:
        """Send no more events to this peer. Without a tuner, the default scheduler returns."""
        if self._events.remove_tuner(address):
            self._choice.request_default()
