"""Messages that arrive twice or out of order take effect once, and old announcements replace no newer ones."""

from __future__ import annotations

from controller.controller_builders import WORKER, a_new_controller
from frontend.frontend_builders import SELECTOR, connected_frontend
from gpu_worker.worker_builders import (
    CONTROLLER,
    HOLDER,
    MODEL,
    a_ship,
    a_worker,
    an_infer,
    connect_controller,
    deliver,
    operations,
    run_operation,
)
from harness.builders import a_report, a_spec, a_state, sent
from horologe_common.applications import Application
from horologe_common.clock import ms
from horologe_common.core.message_order import AnnouncementOrder, RecentCalls
from horologe_common.core.protocol import PeerConnected, PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import Admit, Declare, Load, Models, Register, Result, Rollback, Scan, Share, Unload
from horologe_controller.core.controller import Controller
from horologe_gpu_worker.core.lanes import Finished
from selector.selector_harness import FRONTEND, SelectorHarness


def test_only_the_newest_announcement_of_a_connected_sender_counts() -> None:
    order = AnnouncementOrder()
    assert not order.accept("a", 1)
    order.connect("a")
    assert [order.accept("a", number) for number in (1, 1, 3, 2, 4)] == [True, False, True, False, True]
    assert order.accept("a", 0), "an earlier version does not count"
    order.disconnect("a")
    assert not order.accept("a", 5)


def test_the_last_calls_are_known_by_sender_and_id() -> None:
    calls = RecentCalls()
    assert [calls.is_repeated(sender, number) for sender, number in (("a", 1), ("b", 1), ("a", 1))] == [
        False,
        False,
        True,
    ]
    for number in range(2, 2 + RecentCalls.LIMIT):
        calls.is_repeated("a", number)
    assert not calls.is_repeated("b", 1), "bounded"


def test_an_infer_that_arrives_twice_runs_once() -> None:
    worker = a_worker()
    connect_controller(worker)
    deliver(worker, 0, CONTROLLER, an_infer(1))
    assert deliver(worker, 0, CONTROLLER, an_infer(1)) == []
    [operation] = operations(deliver(worker, 0, HOLDER, *a_ship({100: [1.0]})))
    assert deliver(worker, 0, CONTROLLER, an_infer(1)) == []
    deliver(worker, ms(1), worker.lanes, run_operation(operation))
    late = [out.message for out in deliver(worker, ms(1), CONTROLLER, an_infer(1))]
    assert [(message.action_id, message.status) for message in late] == [(1, Status.TOO_LATE)]


def test_a_load_and_an_unload_that_arrive_again_change_nothing() -> None:
    worker = a_worker()
    connect_controller(worker)

    def residents() -> list[str]:
        return list(worker.shares[0].pages)

    load, unload, again = Load(1, 0, MODEL, 0, ms(9), 1), Unload(2, 0, MODEL), Load(3, 0, MODEL, 0, ms(9), 1)
    deliver(worker, 0, CONTROLLER, load)
    assert deliver(worker, 0, CONTROLLER, load) == []
    deliver(worker, 0, CONTROLLER, unload)
    deliver(worker, 0, CONTROLLER, again)
    assert deliver(worker, 0, CONTROLLER, unload) == [], "the model is wanted again"
    [late] = deliver(worker, 0, CONTROLLER, load)
    assert isinstance(late.message, Result)
    assert (late.message.action_id, late.message.status) == (1, Status.REFUSED)
    assert residents() == [MODEL]


def test_what_was_sent_before_a_worker_registered_again_does_not_change_its_pages() -> None:
    """The controller has read the new connection's Hello, but its core has not: it plans with the record before."""
    worker = a_worker()
    connect_controller(worker)
    deliver(worker, 0, CONTROLLER, Load(1, 0, MODEL, 0, ms(9), 1, registration=1))
    deliver(worker, 0, worker.lanes, Finished(1, "load", Status.OK, 0, 1))
    deliver(worker, 0, CONTROLLER, PeerDisconnected(CONTROLLER))
    connect_controller(worker)
    assert deliver(worker, 0, CONTROLLER, Unload(2, 0, MODEL, registration=1)) == []
    [late] = deliver(worker, 0, CONTROLLER, Load(3, 0, "other/1", 0, ms(9), 1, registration=1))
    assert (late.message.action_id, late.message.status) == (3, Status.REFUSED)
    assert list(worker.shares[0].pages) == [MODEL]
    deliver(worker, 0, CONTROLLER, Unload(4, 0, MODEL, registration=2))
    assert list(worker.shares[0].pages) == []


def connect(controller: Controller) -> None:
    controller.handle(0, WORKER, PeerConnected(WORKER, "host"), ())


def register(controller: Controller, number: int, *models: str, scans: tuple[int, ...] = ()) -> None:
    reports = tuple(a_report(a_spec(model)) for model in models)
    controller.handle(0, WORKER, Register((Share(0, "cpu", 10),), reports, number=number, scans=scans), ())
    controller.tick(0)
    controller.check()


def test_a_register_does_not_replace_a_later_one() -> None:
    controller = a_new_controller()
    connect(controller)
    register(controller, 2, "a", "b")
    register(controller, 1, "a")
    assert sorted(controller.cluster.specs) == ["a/1", "b/1"]
    controller.handle(0, WORKER, PeerDisconnected(WORKER), ())
    connect(controller)
    register(controller, 1, "a", "b", "c")
    assert sorted(controller.cluster.specs) == ["a/1", "b/1", "c/1"], "a new connection counts anew"


def test_an_unload_of_an_operator_that_arrives_again_does_not_undo_a_load() -> None:
    controller = a_new_controller()
    connect(controller)
    register(controller, 1, "a")
    unload, load = Admit(1, "a", "", admitted=False), Admit(2, "a", "", admitted=True)
    for message in (unload, load):
        controller.handle(0, FRONTEND, message, ())
    (scan,) = sent(controller, Scan, WORKER)
    register(controller, 2, "a", scans=(scan.id,))
    for message in (unload, load):
        controller.handle(0, FRONTEND, message, ())
    assert sorted(controller.cluster.specs) == ["a/1"]
    assert not sent(controller, Scan, WORKER)


def test_a_frontend_ignores_old_announcements() -> None:
    frontend = connected_frontend()
    controller = "controller/0#1"
    for number, models in ((2, ("a", "b")), (1, ("a",)), (2, ())):
        frontend.handle(0, controller, Models(0, tuple(a_state(a_spec(name)) for name in models), number=number), ())
    assert [state.spec.name for state in frontend.catalogue.model_states()] == ["a", "b"]
    frontend.handle(0, controller, PeerConnected("controller/0#2"), ())
    frontend.handle(0, controller, Models(0, (), number=3), ())
    assert len(frontend.catalogue.model_states()) == 2, "the controller was replaced"
    frontend.handle(0, SELECTOR, PeerDisconnected(SELECTOR), ())
    frontend.check()


def test_a_declaration_and_a_rollback_that_arrive_again_count_once() -> None:
    harness = SelectorHarness()
    for number, slo_ms in ((1, 10.0), (2, 20.0), (3, 30.0)):
        for _ in range(2):
            harness.send(FRONTEND, Declare(number, Application("digits", ("a",), slo_ms=slo_ms, policy="majority")))
    for _ in range(2):
        harness.send(FRONTEND, Rollback(4, "digits"))
    active = harness.selector.applications.registry.active["digits"]
    assert (active.application.slo_ms, active.revision) == (20.0, 4)
