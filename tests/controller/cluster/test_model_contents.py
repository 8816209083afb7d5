"""Workers with different contents of a model: which one is served, and what reads it again."""

from __future__ import annotations

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
from controller.controller_builders import FRONTEND, MODEL, OTHER, WORKER, submit
from harness.builders import a_report, a_spec, sent
from horologe_common.core.protocol import PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import (
    Infer,
    ModelReport,
    Models,
    Register,
    Scan,
    Share,
    Unload,
)


def test_both_contents_are_run_until_the_last_worker_has_read_the_model() -> None:
    controller = with_old_content(WORKER, OTHER)
    scan_id = request_load(controller)
    report_content(controller, NEW, scans=(scan_id,))
    for number in range(1, 5):
        submit(controller, number)
    infers = [out for out in controller.out if isinstance(out.message, Infer)]
    assert {out.to for out in infers} == {WORKER, OTHER}
    assert not sent(controller, Unload)
    report_content(controller, NEW, OTHER, scans=(scan_id,))
    assert not sent(controller, Unload)
    assert settle(controller)


def test_a_worker_with_another_signature_gets_nothing_until_it_is_chosen() -> None:
    controller = with_old_content(WORKER, OTHER)
    scan_id = request_load(controller)
    other = a_spec(content_hash="new", batch_sizes=(1, 2))
    report_content(controller, other, scans=(scan_id,))
    for number in range(1, 5):
        submit(controller, number)
    assert {out.to for out in controller.out if isinstance(out.message, Infer)} == {OTHER}


def test_after_a_load_the_changed_content_is_served_and_the_worker_without_it_gets_nothing() -> None:
    controller = with_old_content(WORKER, OTHER)
    scan_id = request_load(controller)
    report_content(controller, NEW, scans=(scan_id,))
    report_content(controller, OLD, OTHER, scans=(scan_id,))
    assert [unload.model for unload in sent(controller, Unload, OTHER)] == [MODEL]
    [answer] = settle(controller)
    assert served_content(answer) == [("READY", "new")]
    assert answer.models[0].reason == "not at worker/1#1: its content is old, wanted new"
    for number in range(1, 5):
        submit(controller, number)
    assert {out.to for out in controller.out if isinstance(out.message, Infer)} == {WORKER}


def test_a_worker_that_connects_with_another_content_reads_the_model_again_once() -> None:
    controller = with_old_content(WORKER)
    report_content(controller, NEW, OTHER, resident=())
    assert [scan.model for scan in sent(controller, Scan)] == ["sum"]
    report_content(controller, NEW, OTHER, resident=())
    assert not sent(controller, Scan)
    assert [share.worker for share in controller.cluster.capable[MODEL]] == [WORKER]
    report_content(controller, OLD, OTHER, resident=())
    assert [share.worker for share in controller.cluster.capable[MODEL]] == [WORKER, OTHER]


def test_without_a_load_a_worker_with_another_content_changes_nothing() -> None:
    controller = with_old_content(WORKER)
    report_content(controller, NEW, OTHER, resident=())
    state = sent(controller, Models, FRONTEND)[-1].models[0]
    assert (state.state, state.spec.content_hash) == ("READY", "old")
    controller.handle(0, WORKER, PeerDisconnected(WORKER), ())
    state = sent(controller, Models, FRONTEND)[-1].models[0]
    assert (state.state, state.spec.content_hash) == ("READY", "new"), "no worker has the old one any more"


def test_a_load_of_a_broken_content_fails_and_the_content_before_is_served() -> None:
    controller = with_old_content()
    scan_id = request_load(controller)
    kept = ModelReport(OLD, a_report(OLD).profile, "model.py: SyntaxError")
    controller.handle(0, WORKER, Register((Share(0, "cpu", 8, (MODEL,)),), (kept,), scans=(scan_id,)), ())
    [answer] = answers(controller)
    assert (answer.status, answer.reason) == (Status.FAILED, "serves the content before: model.py: SyntaxError")
    assert served_content(answer) == [("READY", "old")]
    submit(controller, 1)
    assert sent(controller, Infer)


def test_a_load_of_a_broken_model_that_is_not_loaded_makes_it_unavailable() -> None:
    controller = with_old_content()
    scan_id = request_load(controller)
    report_content(controller, NEW, scans=(scan_id,), resident=(), broken="model.py: SyntaxError")
    [answer] = answers(controller)
    assert (answer.status, answer.reason) == (Status.FAILED, "model.py: SyntaxError")
    assert [state.state for state in answer.models] == ["UNAVAILABLE"]
