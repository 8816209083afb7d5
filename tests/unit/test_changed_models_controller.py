"""Changed models at the controller: which content is served, what is planned meanwhile, and when READY is told."""

from __future__ import annotations

from typing import Any

from builders import a_report, a_spec, sent
from horologe_common.clock import ms
from horologe_common.core.protocol import PeerConnected, PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import (
    Admit,
    Distributions,
    DurationHistogram,
    Infer,
    Load,
    ModelReport,
    Models,
    ModelState,
    Register,
    Result,
    Scan,
    Settle,
    Settled,
    Share,
    Submit,
    Unload,
)
from horologe_controller.core.cluster.estimates import LOAD_SIZE
from horologe_controller.core.controller import Controller
from horologe_controller.core.model_loads import LOADS_MAX
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


def test_ready_is_told_when_the_worker_has_the_new_content_and_everybody_has_settled() -> None:
    controller = a_controller()
    scan_id = request_load(controller)
    assert not answers(controller)
    register(controller, NEW, scans=(scan_id,))
    announced = sent(controller, Models, SELECTOR)[-1]
    assert served_content(announced) == [("READY", "new")]
    assert not sent(controller, Settle, FRONTEND), "selectors first: they answer from their cache"
    [first] = sent(controller, Settle, SELECTOR)
    controller.handle(0, SELECTOR, Settled(first.id), ())
    [second] = sent(controller, Settle, FRONTEND)
    assert second.models == (MODEL,)
    assert not answers(controller)
    controller.handle(0, FRONTEND, Settled(second.id), ())
    [answer] = answers(controller)
    assert (answer.status, served_content(answer)) == (Status.OK, [("READY", "new")])


def test_only_the_answer_to_its_own_scan_completes_a_load() -> None:
    controller = a_controller()
    request_load(controller, 7)
    scan_id = request_load(controller, 8)
    register(controller, OLD, scans=())
    register(controller, OLD, scans=(scan_id - 1,))
    assert settle(controller)
    assert not answers(controller, 8)
    register(controller, NEW, scans=(scan_id,))
    settle(controller)
    controller.out.clear()


def test_a_worker_of_an_earlier_version_names_no_scans() -> None:
    controller = a_controller(settled=False)
    controller.handle(0, FRONTEND, PeerConnected(FRONTEND, "host"), ())
    request_load(controller)
    register(controller, NEW, scans=None)
    assert settle(controller)


def test_a_peer_that_disconnects_is_not_waited_for() -> None:
    controller = a_controller(WORKER, OTHER)
    scan_id = request_load(controller)
    register(controller, NEW, scans=(scan_id,))
    controller.handle(0, OTHER, PeerDisconnected(OTHER), ())
    controller.handle(0, SELECTOR, PeerDisconnected(SELECTOR), ())
    assert not answers(controller)
    assert settle(controller)


def test_loads_without_an_answer_are_bounded() -> None:
    controller = a_controller()
    for number in range(1, LOADS_MAX + 2):
        controller.handle(0, FRONTEND, Admit(number, "sum", "", True), ())
    [refused] = sent(controller, Models, FRONTEND)
    assert (refused.id, refused.status) == (LOADS_MAX + 1, Status.REFUSED)


def test_measurements_of_the_old_content_are_dropped_even_if_the_profile_is_equal() -> None:
    """LOADs show it, because predictions of EXECs follow the pace of the share, which other models share."""
    controller = a_controller(resident=())
    submit(controller, 1)
    [load] = sent(controller, Load)
    controller.handle(ms(50), WORKER, Result(load.action_id, Status.OK, 0, ms(50)), ())
    [share] = controller.cluster.shares()
    assert share.predict(ms(50), MODEL, LOAD_SIZE) == ms(50)
    register(controller, OLD)
    assert share.predict(ms(50), MODEL, LOAD_SIZE) == ms(50)
    register(controller, NEW)
    assert share.predict(ms(50), MODEL, LOAD_SIZE) == ms(5)


def test_distributions_belong_to_a_content() -> None:
    controller = a_controller()
    histograms = (DurationHistogram("", 0, (ms(1), ms(2)), (9,)),)

    def publish(content: str) -> None:
        message = Distributions(MODEL, 0, 0.0, histograms, True, (), content)
        controller.handle(0, "profiler/0#1", message, ())

    publish("old")
    assert MODEL in controller.cluster.distributions
    register(controller, NEW)
    assert MODEL not in controller.cluster.distributions
    publish("old")
    assert MODEL not in controller.cluster.distributions
    publish("new")
    assert MODEL in controller.cluster.distributions


def test_a_copy_that_the_worker_has_unloaded_is_loaded_again() -> None:
    controller = a_controller()
    register(controller, NEW, resident=())
    [share] = controller.cluster.shares()
    assert share.pages_free == 8
    submit(controller, 1)
    assert sent(controller, Load, WORKER)


def test_a_copy_with_fewer_pages_frees_them_in_the_mirror() -> None:
    controller = a_controller()
    large = a_spec(content_hash="large", weights_bytes=5 * (16 << 20))
    register(controller, large, resident=())
    submit(controller, 1)
    [load] = sent(controller, Load)
    controller.handle(0, WORKER, Result(load.action_id, Status.OK, 0, 1), ())
    [share] = controller.cluster.shares()
    assert share.pages_free == 3
    register(controller, NEW)
    assert share.pages_free == 7


def test_both_contents_are_run_until_the_last_worker_has_read_the_model() -> None:
    controller = a_controller(WORKER, OTHER)
    scan_id = request_load(controller)
    register(controller, NEW, scans=(scan_id,))
    for number in range(1, 5):
        submit(controller, number)
    infers = [out for out in controller.out if isinstance(out.message, Infer)]
    assert {out.to for out in infers} == {WORKER, OTHER}
    assert not sent(controller, Unload)
    register(controller, NEW, OTHER, scans=(scan_id,))
    assert not sent(controller, Unload)
    assert settle(controller)


def test_a_worker_with_another_signature_gets_nothing_until_it_is_chosen() -> None:
    controller = a_controller(WORKER, OTHER)
    scan_id = request_load(controller)
    other = a_spec(content_hash="new", batch_sizes=(1, 2))
    register(controller, other, scans=(scan_id,))
    for number in range(1, 5):
        submit(controller, number)
    assert {out.to for out in controller.out if isinstance(out.message, Infer)} == {OTHER}


def test_after_a_load_the_changed_content_is_served_and_the_worker_without_it_gets_nothing() -> None:
    controller = a_controller(WORKER, OTHER)
    scan_id = request_load(controller)
    register(controller, NEW, scans=(scan_id,))
    register(controller, OLD, OTHER, scans=(scan_id,))
    assert [unload.model for unload in sent(controller, Unload, OTHER)] == [MODEL]
    [answer] = settle(controller)
    assert served_content(answer) == [("READY", "new")]
    assert answer.models[0].reason == "not at worker/1#1: its content is old, wanted new"
    for number in range(1, 5):
        submit(controller, number)
    assert {out.to for out in controller.out if isinstance(out.message, Infer)} == {WORKER}


def test_a_worker_that_connects_with_another_content_reads_the_model_again_once() -> None:
    controller = a_controller(WORKER)
    controller.handle(0, OTHER, PeerConnected(OTHER, "host"), ())
    register(controller, NEW, OTHER, resident=())
    assert [scan.model for scan in sent(controller, Scan)] == ["sum"]
    register(controller, NEW, OTHER, resident=())
    assert not sent(controller, Scan)
    assert [share.worker for share in controller.cluster.capable[MODEL]] == [WORKER]
    register(controller, OLD, OTHER, resident=())
    assert [share.worker for share in controller.cluster.capable[MODEL]] == [WORKER, OTHER]


def test_without_a_load_a_worker_with_another_content_changes_nothing() -> None:
    controller = a_controller(WORKER)
    controller.handle(0, OTHER, PeerConnected(OTHER, "host"), ())
    register(controller, NEW, OTHER, resident=())
    state = sent(controller, Models, FRONTEND)[-1].models[0]
    assert (state.state, state.spec.content_hash) == ("READY", "old")
    controller.handle(0, WORKER, PeerDisconnected(WORKER), ())
    state = sent(controller, Models, FRONTEND)[-1].models[0]
    assert (state.state, state.spec.content_hash) == ("READY", "new"), "no worker has the old one any more"


def test_a_load_of_a_broken_content_fails_and_the_content_before_is_served() -> None:
    controller = a_controller()
    scan_id = request_load(controller)
    kept = ModelReport(OLD, a_report(OLD).profile, "model.py: SyntaxError")
    controller.handle(0, WORKER, Register((Share(0, "cpu", 8, (MODEL,)),), (kept,), scans=(scan_id,)), ())
    [answer] = answers(controller)
    assert (answer.status, answer.reason) == (Status.FAILED, "serves the content before: model.py: SyntaxError")
    assert served_content(answer) == [("READY", "old")]
    submit(controller, 1)
    assert sent(controller, Infer)


def test_a_load_of_a_broken_model_that_is_not_loaded_makes_it_unavailable() -> None:
    controller = a_controller()
    scan_id = request_load(controller)
    register(controller, NEW, scans=(scan_id,), resident=(), broken="model.py: SyntaxError")
    [answer] = answers(controller)
    assert (answer.status, answer.reason) == (Status.FAILED, "model.py: SyntaxError")
    assert [state.state for state in answer.models] == ["UNAVAILABLE"]


def test_an_unloaded_model_is_served_again_when_it_has_been_read_again() -> None:
    controller = a_controller()
    controller.handle(0, FRONTEND, Admit(5, "sum", "", False), ())
    assert [state.state for state in answers(controller, 5)[0].models] == ["UNAVAILABLE"]
    scan_id = request_load(controller)
    assert MODEL not in controller.cluster.specs, "the content before is not served meanwhile"
    register(controller, NEW, scans=(scan_id,))
    assert served_content(settle(controller)[0]) == [("READY", "new")]


def test_an_unload_wins_over_a_load_that_was_requested_before() -> None:
    controller = a_controller()
    scan_id = request_load(controller)
    controller.handle(0, FRONTEND, Admit(8, "sum", "", False), ())
    controller.out.clear()
    register(controller, NEW, scans=(scan_id,))
    [answer] = answers(controller)
    assert (answer.status, answer.models) == (Status.FAILED, (ModelState(NEW, "UNAVAILABLE", "unloaded"),))


def test_requests_that_wait_are_queued_again_for_the_new_content() -> None:
    controller = a_controller(in_flight=1)
    for number in range(1, 20):
        submit(controller, number)
    register(controller, a_spec(content_hash="new", batch_sizes=(1, 2)))
    controller.check()
    assert controller.pending() == 19


def test_a_load_without_workers_is_answered_at_once() -> None:
    controller = Controller("controller/0#1", ControllerSettings(), "host")
    controller.handle(0, FRONTEND, Admit(7, "sum", "", True), ())
    [answer] = answers(controller)
    assert (answer.status, answer.reason.partition(":")[0]) == (Status.REFUSED, "model 'sum' is not known yet")


def test_a_report_that_a_later_one_has_overtaken_still_answers_its_scan() -> None:
    controller = a_controller()
    scan_id = request_load(controller)
    share, reports = (Share(0, "cpu", 8, (MODEL,)),), (a_report(NEW),)
    controller.handle(0, WORKER, Register(share, reports, number=3), ())
    controller.handle(0, WORKER, Register(share, (a_report(OLD),), number=2, scans=(scan_id,)), ())
    [answer] = settle(controller)
    assert served_content(answer) == [("READY", "new")]
