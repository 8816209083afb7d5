"""Workers with an old and a new content of a model, and loads of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from controller.controller_builders import FRONTEND, MODEL, SELECTOR, WORKER, a_new_controller, register
from harness.builders import a_report, a_spec, sent
from horologe_common.wire import Admit, ModelReport, Models, Scan, Settle, Settled

if TYPE_CHECKING:
    from horologe_controller.core.controller import Controller

OLD, NEW = a_spec(content_hash="old"), a_spec(content_hash="new")


def with_old_content(*workers: str, resident: tuple[str, ...] = (MODEL,), **settings: Any) -> Controller:
    """Return a controller whose workers have the old content, loaded by default."""
    controller = a_new_controller(scheduler="edf", **{"workers": 0, **settings})
    for worker in workers or (WORKER,):
        report_content(controller, OLD, worker, resident=resident)
    controller.out.clear()
    return controller


def report_content(
    controller: Controller, spec: Any, worker: str = WORKER, scans: Any = (), resident: Any = (MODEL,), broken: str = ""
) -> None:
    """Send the Register of a worker with one model, which is loaded."""
    report = ModelReport(spec, None, broken) if broken else a_report(spec)
    register(controller, report, worker=worker, resident=resident, pages=8, scans=scans)


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


def served_content(models: Models) -> list[tuple[str, str]]:
    return [(state.state, state.spec.content_hash) for state in models.models]
