"""Builders for test_changed_models_controller.py and test_model_contents.py."""

from __future__ import annotations

from typing import Any

from harness.builders import a_report, a_spec, sent
from horologe_common.clock import ms
from horologe_common.core.protocol import PeerConnected
from horologe_common.wire import (
    Admit,
    ModelReport,
    Models,
    Register,
    Scan,
    Settle,
    Settled,
    Share,
    Submit,
)
from horologe_controller.core.controller import Controller
from horologe_controller.settings import ControllerSettings

FRONTEND, SELECTOR, WORKER, OTHER = "frontend/0#1", "selector/0#1", "worker/0#1", "worker/1#1"
MODEL = "sum/1"
OLD, NEW = a_spec(content_hash="old"), a_spec(content_hash="new")


def a_controller(
    *workers: str, settled: bool = True, resident: tuple[str, ...] = (MODEL,), **settings: Any
) -> Controller:
    """Return a controller whose workers have the old content loaded. Without `settled` no subscriber is connected."""
    controller = Controller(
        "controller/0#1", ControllerSettings(scheduler="edf", margin_ns=0, preload=False, **settings), "host"
    )
    for address in (FRONTEND, SELECTOR) if settled else ():
        controller.handle(0, address, PeerConnected(address, "host"), ())
    for worker in workers or (WORKER,):
        controller.handle(0, worker, PeerConnected(worker, "host"), ())
        register(controller, OLD, worker, resident=resident)
    controller.out.clear()
    return controller


def register(
    controller: Controller, spec: Any, worker: str = WORKER, scans: Any = (), resident: Any = (MODEL,), **report: Any
) -> None:
    """Send the Register of a worker with one model, which is loaded."""
    reports = (ModelReport(spec, None, report["broken"]),) if "broken" in report else (a_report(spec, **report),)
    controller.handle(0, worker, Register((Share(0, "cpu", 8, resident),), reports, scans=scans), ())
    controller.tick(0)
    controller.check()


def request_load(controller: Controller, number: int = 7) -> int:
    """Request a load, and return the id of its Scans."""
    controller.handle(0, FRONTEND, Admit(number, "sum", "", True), ())
    [scan_id] = {scan.id for scan in sent(controller, Scan)}
    return scan_id


def answers(controller: Controller, number: int = 7) -> list[Models]:
    return [models for models in sent(controller, Models, FRONTEND) if models.id == number]


def settle(controller: Controller) -> list[Models]:
    """Answer the Settles of selectors and frontends, and return the answers to the load."""
    for role in (SELECTOR, FRONTEND):
        for message in sent(controller, Settle, role):
            controller.handle(0, role, Settled(message.id), ())
    return answers(controller)


def submit(controller: Controller, number: int, model: str = MODEL) -> None:
    controller.handle(0, SELECTOR, Submit(number, model, ms(100), 1, FRONTEND, number), ())
    controller.tick(0)


def served_content(models: Models) -> list[tuple[str, str]]:
    return [(state.state, state.spec.content_hash) for state in models.models]
