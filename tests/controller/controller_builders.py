"""A controller with a worker, and the messages that submit and finish requests."""

from __future__ import annotations

from typing import Any

from harness.builders import a_report, sent
from horologe_common.clock import ms
from horologe_common.core.protocol import PeerConnected
from horologe_common.status import Status
from horologe_common.wire import (
    Infer,
    Load,
    Register,
    Result,
    Share,
    Submit,
)
from horologe_controller.core.controller import Controller
from horologe_controller.schedulers import SCHEDULERS
from horologe_controller.settings import ControllerSettings

FRONTEND, SELECTOR, WORKER = "frontend/0#1", "selector/0#1", "worker/0#1"
PROMPT_SCHEDULERS = [name for name in SCHEDULERS if name not in ("clipper", "deferred", "fifo")]
"""Policies that refuse late requests and never let a device wait."""


def a_controller(scheduler: str = "edf", reports: Any = None, pages: int = 64, **settings: Any) -> Controller:
    """Return a controller with one worker of one share, on which all models are loaded."""
    controller = Controller(
        "controller/0#1", ControllerSettings(scheduler=scheduler, margin_ns=0, workers=1, **settings), "host"
    )
    for address in (FRONTEND, SELECTOR):
        controller.handle(0, address, PeerConnected(address, "host"), ())
    join(controller, WORKER, reports, pages)
    for _ in range(len(reports or [1])):
        for load in sent(controller, Load, WORKER):
            controller.handle(0, WORKER, Result(load.action_id, Status.OK, 0, ms(5)), ())
            controller.tick(0)
    return controller


def join(controller: Controller, worker: str, reports: Any = None, pages: int = 64, now_ns: int = 0) -> None:
    controller.handle(now_ns, worker, PeerConnected(worker, "host"), ())
    controller.handle(now_ns, worker, Register((Share(0, "cpu", pages),), tuple(reports or [a_report()])), ())
    controller.tick(now_ns)


def submit(controller: Controller, *numbers: int, now_ns: int = 0, budget_ms: float = 100, **fields: Any) -> None:
    for number in numbers:
        message = Submit(number, fields.get("model", "sum/1"), ms(budget_ms), fields.get("rows", 1), FRONTEND, number)
        controller.handle(now_ns, SELECTOR, message, ())
    controller.tick(now_ns)
    controller.check()


def finish(controller: Controller, infer: Infer, now_ns: int, status: Status = Status.OK, rows: Any = ()) -> None:
    begin_ns = now_ns - infer.expected_ns
    controller.handle(now_ns, WORKER, Result(infer.action_id, status, begin_ns, now_ns, rows=rows), ())
    controller.tick(now_ns)
    controller.check()
