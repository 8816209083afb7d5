"""Controllers with workers, and the messages of their peers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.builders import a_report, sent
from horologe_common.clock import ms
from horologe_common.core.protocol import PeerConnected
from horologe_common.status import Status
from horologe_common.wire import Infer, Load, ModelReport, Models, Register, Result, Share, Submit
from horologe_controller.core.controller import Controller
from horologe_controller.settings import ControllerSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_controller.core.cluster.load_backoff import LoadBackoff

FRONTEND, SELECTOR, TUNER = "frontend/0#1", "selector/0#1", "tuner/0#1"
WORKER, OTHER = "worker/0#1", "worker/1#1"
MODEL = "sum/1"


def a_new_controller(*peers: str, backoff: LoadBackoff | None = None, **settings: Any) -> Controller:
    """Return a controller without workers, with a frontend, a selector and `peers`. By default it does not preload."""
    settings = {"margin_ns": 0, "preload": False, "workers": 1} | settings
    controller = Controller("controller/0#1", ControllerSettings(**settings), "host", backoff)
    connect(controller, FRONTEND, SELECTOR, *peers)
    return controller


def a_controller(
    scheduler: str = "edf", reports: Sequence[ModelReport] = (), pages: int = 64, **settings: Any
) -> Controller:
    """Return a controller with one worker of one share, on which all models are loaded."""
    controller = a_new_controller(scheduler=scheduler, **{"preload": True, **settings})
    register(controller, *(reports or [a_report()]), pages=pages)
    finish_loads(controller)
    return controller


def connect(controller: Controller, *addresses: str, host: str = "host", now_ns: int = 0) -> None:
    for address in addresses:
        controller.handle(now_ns, address, PeerConnected(address, host), ())


def register(
    controller: Controller,
    *reports: ModelReport,
    worker: str = WORKER,
    resident: tuple[str, ...] = (),
    pages: int = 10,
    shares: tuple[Share, ...] = (),
    host: str = "host",
    now_ns: int = 0,
    **fields: Any,
) -> None:
    """Send a report of the worker, and connect it first if necessary."""
    if worker not in controller.cluster.workers:
        connect(controller, worker, host=host, now_ns=now_ns)
    message = Register(shares or (Share(0, "cpu", pages, resident),), reports, **fields)
    controller.handle(now_ns, worker, message, ())
    tick(controller, now_ns)


def tick(controller: Controller, now_ns: int) -> None:
    controller.tick(now_ns)
    controller.check()


def submit(controller: Controller, *numbers: int, now_ns: int = 0, budget_ms: float = 100, **fields: Any) -> None:
    """Submit requests of one row for `sum`, in one turn."""
    given: dict[str, Any] = {"model": MODEL, "rows": 1, "holder": FRONTEND} | fields
    for number in numbers:
        message = Submit(number, budget_ns=ms(budget_ms), input_id=number, **given)
        controller.handle(now_ns, SELECTOR, message, ())
    tick(controller, now_ns)


def finish(
    controller: Controller,
    action: Infer | Load,
    now_ns: int,
    status: Status = Status.OK,
    worker: str = WORKER,
    **fields: Any,
) -> None:
    """Send the result of an action that has taken its expected time."""
    begin_ns = max(0, now_ns - action.expected_ns)
    controller.handle(now_ns, worker, Result(action.action_id, status, begin_ns, now_ns, **fields), ())
    tick(controller, now_ns)


def finish_loads(controller: Controller, worker: str = WORKER, now_ns: int = 0) -> None:
    """Answer the LOADs of a worker, until it gets no more."""
    while loads := sent(controller, Load, worker):
        for load in loads:
            controller.handle(now_ns, worker, Result(load.action_id, Status.OK, now_ns, now_ns + ms(5)), ())
        controller.tick(now_ns)


def join(controller: Controller, worker: str, *reports: ModelReport, pages: int = 64, now_ns: int = 0) -> None:
    """Connect a worker, which loads all that it is asked for."""
    register(controller, *(reports or [a_report()]), worker=worker, pages=pages, now_ns=now_ns)
    finish_loads(controller, worker, now_ns)


def states(controller: Controller) -> dict[str, tuple[str, str]]:
    """Return (state, reason) of each model as last announced."""
    return {model.spec.name: (model.state, model.reason) for model in sent(controller, Models, FRONTEND)[-1].models}


def state(controller: Controller, model: str = "sum") -> Any:
    return states(controller).get(model)
