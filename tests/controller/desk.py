"""A scheduler with its own cluster, for tests of its decisions: plans are carried out at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.builders import a_report, a_spec
from horologe_common.clock import ms, s
from horologe_common.models import PAGE_BYTES
from horologe_common.wire import Register
from horologe_common.wire import Share as Told
from horologe_controller.core.actions import Actions
from horologe_controller.core.cluster.cluster import Cluster, WorkerMirror
from horologe_controller.core.requests.request import Request
from horologe_controller.schedulers import create_scheduler
from horologe_controller.settings import ControllerSettings

if TYPE_CHECKING:
    from horologe_controller.core.cluster.lane import Action

NOW = s(1000)


class Desk:
    """A scheduler, and workers of one share each that hold the named models."""

    def __init__(
        self, name: str, resident: list[tuple[str, ...]], models: tuple[str, ...] = ("m",), **settings: Any
    ) -> None:
        self.settings = ControllerSettings(scheduler=name, preload=False, **settings)
        self.scheduler = create_scheduler(self.settings)
        self.cluster = Cluster(10)
        self.actions = Actions("controller/0#1", self.cluster)
        self.specs = {key: a_spec(key, weights_bytes=4 * PAGE_BYTES) for key in models}
        self.cluster.specs = {spec.key: spec for spec in self.specs.values()}
        reports = tuple(a_report(spec) for spec in self.specs.values())
        for number, held in enumerate(resident):
            worker = self.cluster.workers[f"w{number}"] = WorkerMirror(f"w{number}", True)
            self.cluster.register_worker(
                worker, Register((Told(0, "d", 8, tuple(f"{key}/1" for key in held)),), reports)
            )
        self.asked = 0
        self.refused: list[int] = []
        """The ids of requests refused by plans."""
        self.wake_ns: int | None = None

    def ask(
        self,
        now_ns: int,
        budget_ms: float,
        best_effort: bool = False,
        model: str = "m",
        rows: int = 1,
        solo: bool = False,
        urgent_ns: int | None = None,
    ) -> Request:
        self.asked += 1
        spec = self.specs[model]
        request = Request(
            self.asked,
            "s",
            self.asked,
            spec,
            spec.key,
            rows,
            "f",
            self.asked,
            now_ns,
            now_ns + ms(budget_ms),
            best_effort,
            -self.asked if solo else 0,
            solo=solo,
            urgent_ns=urgent_ns,
        )
        self.scheduler.add(now_ns, [request], self.cluster)
        return request

    def plan(self, now_ns: int) -> tuple[list[Action], list[str]]:
        """Plan and carry out. Return the started actions and the loaded models."""
        before = set(map(id, self.actions))
        loads: list[str] = []
        while True:
            plan = self.scheduler.plan(now_ns, self.cluster)
            list(self.actions.carry_out(now_ns, plan))
            self.scheduler.check()
            self.refused += [refusal.request.id for refusal in plan.refuse]
            self.wake_ns = plan.wake_ns
            loads += [model for _, model in plan.load]
            if not plan.load:
                started = [action for action in self.actions if id(action) not in before and action.kind == "infer"]
                return started, loads

    def end(self, action: Action, at_ns: int) -> None:
        self.actions._pending.pop(action.id)
        self.cluster.changes.mark_share(action.share)
        if action.kind == "load":
            action.share.load.finish_action(action, at_ns)
            action.share.finish_load(action.model, ok=True)
            return
        action.share.exec.finish_action(action, at_ns)
        self.scheduler.observe(at_ns, action, at_ns - action.start_ns)
