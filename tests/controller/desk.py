"""Schedulers with a cluster of their own, for tests of their decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.builders import a_report, a_spec
from horologe_common.clock import ms, s
from horologe_common.models import PAGE_BYTES
from horologe_common.wire import Register, Share, Submit
from horologe_controller.core.actions import Actions
from horologe_controller.core.cluster.cluster import Cluster, WorkerMirror
from horologe_controller.core.cluster.estimates import Estimate, new_pace
from horologe_controller.core.requests.request import Request
from horologe_controller.schedulers import create_scheduler
from horologe_controller.settings import ControllerSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horologe_common.models import ModelSpec
    from horologe_common.wire import ModelReport
    from horologe_controller.core.cluster.lane import Action
    from horologe_controller.core.scheduling.decisions import Refusal
    from horologe_controller.core.scheduling.planner import Planner

NOW = s(1000)


class SchedulerDesk:
    """A scheduler and its cluster, whose workers `w0`, `w1`, ... have one share each."""

    def __init__(self, scheduler: Planner, specs: Iterable[ModelSpec], pages: int = 64) -> None:
        self.scheduler = scheduler
        self.cluster = scheduler.cluster
        self.cluster.specs = {spec.key: spec for spec in specs}
        self.pages = pages
        self.requests = 0

    def register(self, number: int, resident: Iterable[str], reports: Sequence[ModelReport] = ()) -> None:
        """Register a worker that reports all models, and holds the `resident` ones."""
        worker = self.cluster.workers.setdefault(f"w{number}", WorkerMirror(f"w{number}", True))
        reports = reports or [a_report(spec) for spec in self.cluster.specs.values()]
        share = Share(0, "d", self.pages, tuple(resident))
        self.cluster.register_worker(worker, Register((share,), tuple(reports)))

    def a_request(self, now_ns: int, spec: ModelSpec, budget_ms: float, rows: int = 1, **fields: Any) -> Request:
        self.requests += 1
        number, budget_ns = self.requests, ms(budget_ms)
        submit = Submit(number, spec.key, budget_ns, rows, "f", number, **fields)
        return Request(number, "s", submit, spec, now_ns, now_ns + budget_ns)

    def add(self, now_ns: int, *requests: Request) -> list[Refusal]:
        """Queue requests that arrive in one turn. Return the refusals."""
        return self.scheduler.add(now_ns, list(requests))


class Desk(SchedulerDesk):
    """A scheduler, and workers of one share each that hold the named models. Plans are carried out at once."""

    def __init__(
        self, name: str, resident: list[tuple[str, ...]], models: tuple[str, ...] = ("m",), **settings: Any
    ) -> None:
        self.settings = ControllerSettings(scheduler=name, preload=False, **settings)
        self.specs = {key: a_spec(key, weights_bytes=4 * PAGE_BYTES) for key in models}
        super().__init__(create_scheduler(self.settings, Cluster()), self.specs.values(), pages=8)
        self.actions = Actions("controller/0#1", self.cluster)
        for number, held in enumerate(resident):
            self.register(number, [f"{key}/1" for key in held])
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
        urgent_after_ns: int = 0,
    ) -> Request:
        request = self.a_request(
            now_ns,
            self.specs[model],
            budget_ms,
            rows,
            best_effort=best_effort,
            solo=solo,
            urgent_after_ns=urgent_after_ns,
        )
        self.add(now_ns, request)
        return request

    def set_profile(self, model: str, durations_ns: dict[int, int]) -> None:
        """Let the model take these durations on the first worker, by batch size, until it is measured."""
        self.cluster.workers["w0"].shares[0].estimates[model] = Estimate(durations_ns, new_pace())

    def plan(self, now_ns: int) -> tuple[list[Action], list[str]]:
        """Plan and carry out. Return the started actions and the loaded models."""
        before = set(map(id, self.actions))
        loads: list[str] = []
        while True:
            plan = self.scheduler.plan(now_ns)
            self.actions.carry_out(now_ns, plan, [])
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
