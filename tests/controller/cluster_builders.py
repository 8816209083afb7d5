"""Builders for test_cluster.py and test_batch_sizes_of_workers.py."""

from __future__ import annotations

from typing import Any

from harness.builders import sent
from horologe_common.clock import ms
from horologe_common.core.protocol import PeerConnected
from horologe_common.status import Status
from horologe_common.wire import Infer, Load, Models, Register, Result, Share, Submit
from horologe_controller.core.controller import Controller
from horologe_controller.settings import ControllerSettings

FRONTEND, SELECTOR, WORKER, OTHER = "frontend/0#1", "selector/0#1", "worker/0#1", "worker/1#1"


def a_controller(**settings: Any) -> Controller:
    settings = {"margin_ns": 0, "preload": False, "workers": 1} | settings
    controller = Controller("controller/0#2", ControllerSettings(**settings), "host")
    for address in (FRONTEND, SELECTOR):
        controller.handle(0, address, PeerConnected(address, "host"), ())
    return controller


def register(
    controller: Controller,
    *reports: Any,
    worker: str = WORKER,
    shares: tuple[Share, ...] = (),
    now_ns: int = 0,
) -> None:
    """Send a report of the worker, and connect it first if necessary."""
    if worker not in controller.cluster.workers:
        controller.handle(now_ns, worker, PeerConnected(worker, "host"), ())
    controller.handle(now_ns, worker, Register(shares or (Share(0, "cpu", 10),), reports), ())
    tick(controller, now_ns)


def tick(controller: Controller, now_ns: int) -> None:
    controller.tick(now_ns)
    controller.check()


def submit(controller: Controller, *numbers: int, model: str = "sum/1", now_ns: int = 0, **fields: Any) -> None:
    given = {"budget_ns": ms(500), "rows": 1} | fields
    for number in numbers:
        controller.handle(now_ns, SELECTOR, Submit(number, model, holder=FRONTEND, input_id=number, **given), ())
    tick(controller, now_ns)


def end(controller: Controller, action: Infer | Load, now_ns: int, status: Status = Status.OK, **fields: Any) -> None:
    sender = fields.pop("worker", WORKER)
    begin_ns = now_ns - ms(1)
    controller.handle(now_ns, sender, Result(action.action_id, status, begin_ns, now_ns, **fields), ())
    tick(controller, now_ns)


def states(controller: Controller) -> dict[str, tuple[str, str]]:
    """Return (state, reason) of each model as last announced."""
    return {model.spec.name: (model.state, model.reason) for model in sent(controller, Models, FRONTEND)[-1].models}


def state(controller: Controller, model: str = "sum") -> Any:
    return states(controller).get(model)


def resident(*models: str, pages: int = 10) -> tuple[Share, ...]:
    return (Share(0, "cpu", pages, models),)
