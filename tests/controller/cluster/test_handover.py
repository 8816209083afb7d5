"""A draining worker hands over the models that only it has loaded before it is released."""

from __future__ import annotations

from typing import Any

from harness.builders import a_report, a_spec, sent
from horologe_common.clock import ms
from horologe_common.core.protocol import PeerConnected, PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import Drain, Infer, Load, Register, Result, Share, Submit
from horologe_controller.core.cluster.handover import HANDOVER_NS
from horologe_controller.core.controller import Controller
from horologe_controller.settings import ControllerSettings

LEAVING, STAYING, FRONTEND, SELECTOR = "worker/0#1", "worker/1#1", "frontend/0#1", "selector/0#1"


def a_controller(elsewhere: tuple[str, ...] = (), pages: int = 4) -> Controller:
    """Return a controller with two workers. The first has `a/1` in its pages; the second has just registered."""
    controller = Controller("controller/0#1", ControllerSettings(scheduler="edf", margin_ns=0, workers=2), "host")
    for address in (FRONTEND, SELECTOR, LEAVING, STAYING):
        controller.handle(0, address, PeerConnected(address, "host"), ())
    reports = tuple(a_report(a_spec(key.partition("/")[0], weights_bytes=16 << 20)) for key in ("a/1", "b/1"))
    for worker, loaded, total in ((LEAVING, ("a/1",), 1), (STAYING, elsewhere, pages)):
        controller.handle(ms(9), worker, Register((Share(0, "cpu", total, loaded),), reports), ())
    return controller


def finish(controller: Controller, worker: str, action: Any, status: Status = Status.OK, now_ns: int = ms(2)) -> None:
    controller.handle(now_ns, worker, Result(action.action_id, status, now_ns - ms(1), now_ns), ())
    controller.tick(now_ns)
    controller.check()


def drain(controller: Controller, worker: str = LEAVING, now_ns: int = ms(10)) -> None:
    controller.handle(now_ns, worker, Drain(), ())
    controller.tick(now_ns)
    controller.check()


def loads_of_a(controller: Controller) -> list[Load]:
    """Return the LOADs of the model `a` that the other worker has got."""
    return [load for load in sent(controller, Load, STAYING) if load.model == "a/1"]


def submit(controller: Controller, number: int, now_ns: int) -> list[Infer]:
    """Submit a request for the model `a`. Return the batches that the draining worker gets."""
    controller.handle(now_ns, SELECTOR, Submit(number, "a/1", ms(100), 1, FRONTEND, number), ())
    controller.tick(now_ns)
    return sent(controller, Infer, LEAVING)


def test_a_model_is_loaded_elsewhere_while_the_draining_worker_still_runs_it() -> None:
    controller = a_controller()
    drain(controller)
    (load,) = loads_of_a(controller)
    assert not sent(controller, Drain, LEAVING)
    (infer,) = submit(controller, 1, ms(11))
    finish(controller, LEAVING, infer, now_ns=ms(13))
    finish(controller, STAYING, load, now_ns=ms(20))
    assert sent(controller, Drain, LEAVING), "nothing more is sent to it"
    assert not submit(controller, 2, ms(21))
    assert sent(controller, Infer, STAYING)


def test_a_worker_is_released_at_once_if_its_models_are_loaded_elsewhere() -> None:
    controller = a_controller(elsewhere=("a/1",))
    drain(controller)
    assert sent(controller, Drain, LEAVING)


def test_a_worker_is_released_at_once_if_no_other_has_room() -> None:
    controller = a_controller(elsewhere=("b/1",), pages=1)
    drain(controller)
    assert sent(controller, Drain, LEAVING)
    assert not loads_of_a(controller)


def test_a_failed_load_ends_the_wait() -> None:
    controller = a_controller()
    drain(controller)
    (load,) = loads_of_a(controller)
    finish(controller, STAYING, load, Status.REFUSED, ms(20))
    assert sent(controller, Drain, LEAVING)


def test_a_worker_waits_no_longer_than_its_time() -> None:
    controller = a_controller()
    drain(controller)
    assert loads_of_a(controller)
    controller.tick(ms(10) + HANDOVER_NS)
    assert sent(controller, Drain, LEAVING)


def test_nothing_is_handed_over_to_a_worker_that_drains_too() -> None:
    controller = a_controller()
    drain(controller, STAYING)
    drain(controller)
    assert sent(controller, Drain, LEAVING)
    assert not loads_of_a(controller)


def test_a_draining_worker_may_disconnect() -> None:
    controller = a_controller()
    drain(controller)
    controller.handle(ms(11), LEAVING, PeerDisconnected(LEAVING), ())
    controller.tick(ms(11))
    controller.check()
    assert not sent(controller, Drain, LEAVING)
