"""Changed models at the controller: which content is served, what is planned meanwhile, and when READY is told."""

from __future__ import annotations

from typing import Any

import pytest

from controller.changed_model_builders import (
    NEW,
    OLD,
    answers,
    report_content,
    request_load,
    served_content,
    settle,
    with_old_content,
)
from controller.controller_builders import FRONTEND, MODEL, OTHER, SELECTOR, WORKER, submit
from harness.builders import a_report, a_spec, sent
from horologe_common.clock import ms
from horologe_common.core.protocol import PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import (
    Admit,
    Distributions,
    DurationHistogram,
    Load,
    Models,
    ModelState,
    Register,
    Result,
    Settle,
    Settled,
    Share,
)
from horologe_controller.core.cluster.model_profiles import LOAD_SIZE
from horologe_controller.core.controller import Controller
from horologe_controller.core.model_loads import LOADS_MAX
from horologe_controller.settings import ControllerSettings


def test_ready_is_told_when_the_worker_has_the_new_content_and_everybody_has_settled() -> None:
    controller = with_old_content()
    scan_id = request_load(controller)
    assert not answers(controller)
    report_content(controller, NEW, scans=(scan_id,))
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
    controller = with_old_content()
    request_load(controller, 7)
    scan_id = request_load(controller, 8)
    report_content(controller, OLD, scans=())
    report_content(controller, OLD, scans=(scan_id - 1,))
    assert settle(controller)
    assert not answers(controller, 8)
    report_content(controller, NEW, scans=(scan_id,))
    settle(controller)
    controller.out.clear()


def test_a_worker_of_an_earlier_version_names_no_scans() -> None:
    controller = with_old_content()
    request_load(controller)
    report_content(controller, NEW, scans=None)
    assert settle(controller)


def test_a_peer_that_disconnects_is_not_waited_for() -> None:
    controller = with_old_content(WORKER, OTHER)
    scan_id = request_load(controller)
    report_content(controller, NEW, scans=(scan_id,))
    controller.handle(0, OTHER, PeerDisconnected(OTHER), ())
    controller.handle(0, SELECTOR, PeerDisconnected(SELECTOR), ())
    assert not answers(controller)
    assert settle(controller)


def test_loads_without_an_answer_are_bounded() -> None:
    controller = with_old_content()
    for number in range(1, LOADS_MAX + 2):
        controller.handle(0, FRONTEND, Admit(number, "sum", "", True), ())
    [refused] = sent(controller, Models, FRONTEND)
    assert (refused.id, refused.status) == (LOADS_MAX + 1, Status.REFUSED)


def test_measurements_of_the_old_content_are_dropped_even_if_the_profile_is_equal() -> None:
    """LOADs show it, because predictions of EXECs follow the pace of the share, which other models share."""
    controller = with_old_content(resident=())
    submit(controller, 1)
    [load] = sent(controller, Load)
    controller.handle(ms(20), WORKER, Result(load.action_id, Status.OK, 0, ms(20)), ())
    [share] = controller.cluster.shares()
    assert share.predict(ms(20), MODEL, LOAD_SIZE) == ms(20)
    report_content(controller, OLD)
    assert share.predict(ms(20), MODEL, LOAD_SIZE) == ms(20)
    report_content(controller, NEW)
    assert share.predict(ms(20), MODEL, LOAD_SIZE) == ms(5)


def test_distributions_belong_to_a_content() -> None:
    controller = with_old_content()
    histograms = (DurationHistogram("", 0, (ms(1), ms(2)), (9,)),)

    def publish(content: str) -> None:
        message = Distributions(MODEL, 0, 0.0, histograms, True, (), content)
        controller.handle(0, "profiler/0#1", message, ())

    publish("old")
    assert MODEL in controller.cluster.distributions
    report_content(controller, NEW)
    assert MODEL not in controller.cluster.distributions
    publish("old")
    assert MODEL not in controller.cluster.distributions
    publish("new")
    assert MODEL in controller.cluster.distributions
    report_content(controller, a_spec("another"))
    assert MODEL not in controller.cluster.distributions, "no worker has it any more"


def test_a_copy_that_the_worker_has_unloaded_is_loaded_again() -> None:
    controller = with_old_content()
    report_content(controller, NEW, resident=())
    [share] = controller.cluster.shares()
    assert share.pages_free == 8
    submit(controller, 1)
    assert sent(controller, Load, WORKER)


def test_a_copy_with_fewer_pages_frees_them_in_the_mirror() -> None:
    controller = with_old_content()
    large = a_spec(content_hash="large", weights_bytes=5 * (16 << 20))
    report_content(controller, large, resident=())
    submit(controller, 1)
    [load] = sent(controller, Load)
    controller.handle(0, WORKER, Result(load.action_id, Status.OK, 0, 1), ())
    [share] = controller.cluster.shares()
    assert share.pages_free == 3
    report_content(controller, NEW)
    assert share.pages_free == 7


def test_an_unloaded_model_is_served_again_when_it_has_been_read_again() -> None:
    controller = with_old_content()
    controller.handle(0, FRONTEND, Admit(5, "sum", "", False), ())
    assert [state.state for state in answers(controller, 5)[0].models] == ["UNAVAILABLE"]
    scan_id = request_load(controller)
    assert MODEL not in controller.cluster.specs, "the content before is not served meanwhile"
    report_content(controller, NEW, scans=(scan_id,))
    assert served_content(settle(controller)[0]) == [("READY", "new")]


def test_an_unloaded_model_stays_unloaded_while_a_worker_has_it() -> None:
    controller = with_old_content(WORKER, OTHER)
    controller.handle(0, FRONTEND, Admit(5, "sum", "", False), ())
    report_content(controller, a_spec("another"), OTHER, resident=())
    states = {state.spec.key: state.state for state in sent(controller, Models, FRONTEND)[-1].models}
    assert states == {MODEL: "UNAVAILABLE", "another/1": "READY"}


def test_an_unload_wins_over_a_load_that_was_requested_before() -> None:
    controller = with_old_content()
    scan_id = request_load(controller)
    controller.handle(0, FRONTEND, Admit(8, "sum", "", False), ())
    controller.out.clear()
    report_content(controller, NEW, scans=(scan_id,))
    [answer] = answers(controller)
    assert (answer.status, answer.models) == (Status.FAILED, (ModelState(NEW, "UNAVAILABLE", "unloaded"),))


def test_requests_that_wait_are_queued_again_for_the_new_content() -> None:
    controller = with_old_content(in_flight=1)
    for number in range(1, 20):
        submit(controller, number)
    report_content(controller, a_spec(content_hash="new", batch_sizes=(1, 2)))
    controller.check()
    assert controller.pending() == 19


def test_a_load_without_workers_is_answered_at_once() -> None:
    controller = Controller("controller/0#1", ControllerSettings(), "host")
    controller.handle(0, FRONTEND, Admit(7, "sum", "", True), ())
    [answer] = answers(controller)
    assert (answer.status, answer.reason.partition(":")[0]) == (Status.REFUSED, "model 'sum' is not known yet")


def test_a_report_that_a_later_one_has_overtaken_still_answers_its_scan() -> None:
    controller = with_old_content()
    scan_id = request_load(controller)
    share, reports = (Share(0, "cpu", 8, (MODEL,)),), (a_report(NEW),)
    controller.handle(0, WORKER, Register(share, reports, number=3), ())
    controller.handle(0, WORKER, Register(share, (a_report(OLD),), number=2, scans=(scan_id,)), ())
    [answer] = settle(controller)
    assert served_content(answer) == [("READY", "new")]


@pytest.mark.parametrize(
    ("content", "remark"), [(OLD, "unchanged: its files have the content old as before"), (NEW, "")]
)
def test_a_load_of_files_that_have_not_changed_says_so(content: Any, remark: str) -> None:
    controller = with_old_content()
    report_content(controller, content, scans=(request_load(controller),))
    [answer] = settle(controller)
    assert (answer.status, [state.reason for state in answer.models]) == (Status.OK, [remark])
    assert sent(controller, Models, SELECTOR)[-1].models[0].reason == "", "only the answer has the remark"


def test_a_load_of_a_model_that_was_not_served_is_no_load_of_unchanged_files() -> None:
    controller = with_old_content()
    report_content(controller, OLD, broken="weights.bin: No such file or directory")
    report_content(controller, OLD, scans=(request_load(controller),), resident=())
    assert settle(controller)[0].models[0].reason == ""
