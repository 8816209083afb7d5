"""A draining worker hands over the models that only it has loaded before it is released."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controller.controller_builders import OTHER, WORKER, a_new_controller, finish, submit, tick
from harness.builders import a_report, a_spec, sent
from horologe_common.clock import ms
from horologe_common.core.protocol import PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import Drain, Infer, Load, Register, Share
from horologe_controller.core.cluster.worker_links import HANDOVER_NS

if TYPE_CHECKING:
    from horologe_controller.core.controller import Controller

LEAVING, STAYING = WORKER, OTHER


def with_two_workers(elsewhere: tuple[str, ...] = (), pages: int = 4) -> Controller:
    """Return a controller with two workers. The first has `a/1` in its pages; the second has just registered."""
    controller = a_new_controller(LEAVING, STAYING, scheduler="edf", preload=True, workers=2)
    reports = [a_report(a_spec(name, weights_bytes=16 << 20)) for name in "ab"]
    for worker, loaded, total in ((LEAVING, ("a/1",), 1), (STAYING, elsewhere, pages)):
        controller.handle(ms(9), worker, Register((Share(0, "cpu", total, loaded),), tuple(reports)), ())
    return controller


def drain(controller: Controller, worker: str = LEAVING, now_ns: int = ms(10)) -> None:
    controller.handle(now_ns, worker, Drain(), ())
    tick(controller, now_ns)


def loads_of_a(controller: Controller) -> list[Load]:
    """Return the LOADs of the model `a` that the other worker has got."""
    return [load for load in sent(controller, Load, STAYING) if load.model == "a/1"]


def batches_of_a(controller: Controller, number: int, now_ns: int) -> list[Infer]:
    """Submit a request for the model `a`. Return the batches that the draining worker gets."""
    submit(controller, number, now_ns=now_ns, model="a/1")
    return sent(controller, Infer, LEAVING)


def test_a_model_is_loaded_elsewhere_while_the_draining_worker_still_runs_it() -> None:
    controller = with_two_workers()
    drain(controller)
    (load,) = loads_of_a(controller)
    assert not sent(controller, Drain, LEAVING)
    (infer,) = batches_of_a(controller, 1, ms(11))
    finish(controller, infer, ms(13))
    finish(controller, load, ms(20), worker=STAYING)
    assert sent(controller, Drain, LEAVING), "nothing more is sent to it"
    assert not batches_of_a(controller, 2, ms(21))
    assert sent(controller, Infer, STAYING)


def test_a_worker_is_released_at_once_if_its_models_are_loaded_elsewhere() -> None:
    controller = with_two_workers(elsewhere=("a/1",))
    drain(controller)
    assert sent(controller, Drain, LEAVING)


def test_a_worker_is_released_at_once_if_no_other_has_room() -> None:
    controller = with_two_workers(elsewhere=("b/1",), pages=1)
    drain(controller)
    assert sent(controller, Drain, LEAVING)
    assert not loads_of_a(controller)


def test_a_failed_load_ends_the_wait() -> None:
    controller = with_two_workers()
    drain(controller)
    (load,) = loads_of_a(controller)
    finish(controller, load, ms(20), Status.REFUSED, STAYING)
    assert sent(controller, Drain, LEAVING)


def test_a_worker_waits_no_longer_than_its_time() -> None:
    controller = with_two_workers()
    drain(controller)
    assert loads_of_a(controller)
    controller.tick(ms(10) + HANDOVER_NS)
    assert sent(controller, Drain, LEAVING)


def test_nothing_is_handed_over_to_a_worker_that_drains_too() -> None:
    controller = with_two_workers()
    drain(controller, STAYING)
    drain(controller)
    assert sent(controller, Drain, LEAVING)
    assert not loads_of_a(controller)


def test_a_draining_worker_may_disconnect() -> None:
    controller = with_two_workers()
    drain(controller)
    controller.handle(ms(11), LEAVING, PeerDisconnected(LEAVING), ())
    controller.tick(ms(11))
    controller.check()
    assert not sent(controller, Drain, LEAVING)
