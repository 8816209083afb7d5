"""Switches between versions: who gets the requests without a version, and what happens before and after a switch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from controller.changed_model_builders import answers
from controller.controller_builders import FRONTEND, SELECTOR, WORKER, a_new_controller, register, submit, tick
from harness.builders import a_report, a_spec, sent
from horologe_common.clock import s
from horologe_common.core.protocol import PeerDisconnected
from horologe_common.models import PAGE_BYTES
from horologe_common.rollouts import ControllerState, Rollout
from horologe_common.status import Status
from horologe_common.wire import Admit, Infer, Load, ModelReport, Models, Result, Scan, Settle, Settled, Unload
from horologe_controller.core.cluster.share import STREAM_NS
from horologe_controller.core.version_switches import SLACK_LOADS, SLACK_NS

if TYPE_CHECKING:
    from horologe_controller.core.controller import Controller

ONE, TWO = "sum/1", "sum/2"


def report_versions(controller: Controller, *versions: str, retired: str = "", **fields: Any) -> None:
    reports = [
        ModelReport(
            a_spec("sum", version), a_report().profile, "gone" if version == retired else "", retired=version == retired
        )
        for version in versions
    ]
    register(controller, *reports, pages=8, **fields)


def a_used_version(*versions: str, **settings: Any) -> Controller:
    """Return a controller on whose worker version 1 is loaded, and then has reported these versions as well."""
    controller = a_new_controller(**settings)
    report_versions(controller, "1", resident=(ONE,))
    if versions:
        report_versions(controller, "1", *versions, resident=(ONE,))
    return controller


def roll(controller: Controller, rollout: str, version: str = "", weight: float = 0.0, number: int = 7) -> None:
    controller.handle(0, FRONTEND, Admit(number, "sum", version, True, rollout, weight), ())
    tick(controller, 0)


def finish_load(controller: Controller, key: str, status: Status = Status.OK) -> None:
    [load] = sent(controller, Load, WORKER)
    assert load.model == key
    controller.handle(0, WORKER, Result(load.action_id, int(status), 0, 1, reason="broken"), ())
    tick(controller, 0)


def settle_all(controller: Controller) -> None:
    for role in (SELECTOR, FRONTEND):
        for message in sent(controller, Settle, role):
            controller.handle(0, role, Settled(message.id), ())
    tick(controller, 0)


def finish_rollout(controller: Controller, number: int = 7) -> Models:
    settle_all(controller)
    [answer] = answers(controller, number)
    tick(controller, 0)
    return answer


def traffic(controller: Controller) -> dict[str, float]:
    """Return the parts of the last announcement."""
    outs = [out.message for out in controller.out if out.to == FRONTEND]
    announced = [message for message in outs if isinstance(message, Models) and message.id == 0]
    return {state.spec.version: state.traffic for state in announced[-1].models}


def promoted(controller: Controller, version: str = "2") -> Controller:
    """Promote a version that has to be loaded."""
    roll(controller, "promote", version)
    finish_load(controller, f"sum/{version}")
    assert finish_rollout(controller).status == Status.OK
    return controller


def pin_the_first(controller: Controller) -> None:
    roll(controller, "promote", "1", number=6)
    finish_rollout(controller, 6)


def test_a_newer_version_gets_requests_when_it_is_loaded_where_the_older_one_is_used() -> None:
    controller = a_used_version("2")
    assert traffic(controller) == {"1": 1.0, "2": 0.0}
    finish_load(controller, TWO)
    assert traffic(controller) == {"1": 0.0, "2": 1.0}
    [settle_message] = sent(controller, Settle, SELECTOR)
    assert settle_message.drained == (ONE,)


def test_a_newer_version_gets_requests_at_once_if_no_other_one_has_run() -> None:
    controller = a_new_controller()
    report_versions(controller, "1", "2")
    assert traffic(controller) == {"1": 0.0, "2": 1.0}
    assert not sent(controller, Load), "nothing is loaded for it"


def test_a_single_version_gets_all_requests() -> None:
    assert traffic(a_used_version()) == {"1": 1.0}


def test_a_single_version_that_is_unavailable_gets_no_requests() -> None:
    controller = a_used_version()
    controller.handle(0, FRONTEND, Admit(9, "sum", "", False), ())
    [answer] = [models for models in sent(controller, Models, FRONTEND) if models.id == 9]
    assert [(state.state, state.traffic) for state in answer.models] == [("UNAVAILABLE", 0.0)]


def test_a_version_that_cannot_be_served_gets_no_requests() -> None:
    controller = a_used_version()
    register(controller, a_report(), ModelReport(a_spec("sum", "2"), None, "no such file"), pages=8, resident=(ONE,))
    assert traffic(controller) == {"1": 1.0, "2": 0.0}
    roll(controller, "promote", "2")
    [scan] = sent(controller, Scan, WORKER)
    register(controller, a_report(), ModelReport(a_spec("sum", "2"), None, "no such file"), pages=8, scans=(scan.id,))
    [answer] = answers(controller)
    assert (answer.status, answer.reason) == (Status.FAILED, "sum/2: UNAVAILABLE: no such file")


def test_a_promotion_loads_the_version_then_drains_and_unloads_the_one_before() -> None:
    controller = a_used_version()
    pin_the_first(controller)
    report_versions(controller, "1", "2", resident=(ONE,))
    assert traffic(controller) == {"1": 1.0, "2": 0.0}, "an operator has chosen"
    roll(controller, "promote", "2")
    assert not sent(controller, Settle), "the version is not loaded yet"
    finish_load(controller, TWO)
    assert traffic(controller) == {"1": 0.0, "2": 1.0}
    [first] = sent(controller, Settle, SELECTOR)
    controller.handle(0, SELECTOR, Settled(first.id), ())
    [second] = sent(controller, Settle, FRONTEND)
    assert second.drained == (ONE,)
    tick(controller, 0)
    assert not sent(controller, Unload), "frontends may have requests for it"
    controller.handle(0, FRONTEND, Settled(second.id), ())
    tick(controller, 0)
    [answer] = answers(controller)
    assert {state.spec.version: state.traffic for state in answer.models} == {"1": 0.0, "2": 1.0}
    assert [unload.model for unload in sent(controller, Unload)] == [ONE]


def test_a_version_with_open_requests_is_unloaded_after_them() -> None:
    controller = a_used_version("2")
    submit(controller, 1)
    finish_load(controller, TWO)
    settle_all(controller)
    tick(controller, 0)
    assert not sent(controller, Unload)
    controller.handle(0, SELECTOR, PeerDisconnected(SELECTOR), ())
    [infer] = sent(controller, Infer)
    controller.handle(0, WORKER, Result(infer.action_id, Status.OK, 0, 1), ())
    tick(controller, 0)
    assert [unload.model for unload in sent(controller, Unload)] == [ONE]


def test_a_version_with_open_streams_is_unloaded_after_them() -> None:
    controller = a_used_version("2")
    [share] = controller.cluster.shares()
    share.last_step_ns[ONE] = 0
    finish_load(controller, TWO)
    settle_all(controller)
    tick(controller, 0)
    assert not sent(controller, Unload)
    tick(controller, STREAM_NS)
    assert [unload.model for unload in sent(controller, Unload)] == [ONE]


def test_a_version_that_lost_its_requests_is_not_preloaded_again() -> None:
    controller = promoted(a_used_version("2", preload=True))
    sent(controller, Unload)
    report_versions(controller, "1", "2", resident=(TWO,))
    tick(controller, 0)
    assert not sent(controller, Load)


def test_a_version_that_does_not_load_in_time_gets_no_requests() -> None:
    controller = a_used_version("2")
    assert sent(controller, Load)
    wakeup_ns = controller.catalogue.switches.next_ns()
    assert wakeup_ns == SLACK_NS + SLACK_LOADS * controller.cluster.profiled_load_ns(TWO)
    tick(controller, wakeup_ns)
    assert traffic(controller) == {"1": 1.0, "2": 0.0}


def test_a_failed_load_fails_the_promotion() -> None:
    controller = a_used_version()
    pin_the_first(controller)
    report_versions(controller, "1", "2", resident=(ONE,))
    roll(controller, "promote", "2")
    finish_load(controller, TWO, Status.FAILED)
    assert traffic(controller) == {"1": 1.0, "2": 0.0}
    [answer] = answers(controller)
    assert (answer.status, answer.reason) == (Status.FAILED, "sum/2: broken")


def test_versions_that_do_not_fit_beside_each_other_switch_without_waiting() -> None:
    controller = a_new_controller()
    large = [a_report(a_spec("sum", version, weights_bytes=5 * PAGE_BYTES)) for version in ("1", "2")]
    register(controller, large[0], pages=8, resident=(ONE,))
    register(controller, *large, pages=8, resident=(ONE,))
    assert traffic(controller) == {"1": 0.0, "2": 1.0}


def test_a_rollback_returns_to_the_version_before() -> None:
    controller = a_used_version("2")
    finish_load(controller, TWO)
    settle_all(controller)
    tick(controller, 0)
    controller.out.clear()
    roll(controller, "rollback")
    finish_load(controller, ONE)
    assert traffic(controller) == {"1": 1.0, "2": 0.0}
    finish_rollout(controller)
    assert controller.catalogue.switches.rollouts["sum"] == Rollout("1", "2", pinned=True)


def test_a_canary_gets_its_part_when_it_is_loaded_and_a_rollback_ends_it() -> None:
    controller = a_used_version()
    pin_the_first(controller)
    report_versions(controller, "1", "2", resident=(ONE,))
    roll(controller, "canary", "2", 0.25)
    finish_load(controller, TWO)
    assert traffic(controller) == {"1": 0.75, "2": 0.25}
    finish_rollout(controller)
    assert not sent(controller, Unload)
    roll(controller, "rollback", number=8)
    assert traffic(controller) == {"1": 1.0, "2": 0.0}
    finish_rollout(controller, 8)
    assert [unload.model for unload in sent(controller, Unload)] == [TWO]


def test_a_canary_that_is_unloaded_gets_no_requests() -> None:
    controller = a_used_version()
    controller.restore(ControllerState({"sum": Rollout("1", pinned=True, canary="2", weight=0.5)}))
    report_versions(controller, "1", "2", resident=(ONE,))
    assert traffic(controller) == {"1": 0.5, "2": 0.5}
    controller.handle(0, FRONTEND, Admit(7, "sum", "2", False), ())
    assert traffic(controller) == {"1": 1.0, "2": 0.0}


@pytest.mark.parametrize(
    ("rollout", "version", "weight", "status", "reason"),
    [
        ("promote", "9", 0.0, Status.UNKNOWN_MODEL, "version: got '9', wanted one of model sum: 1, 2"),
        ("canary", "1", 0.5, Status.INVALID_INPUT, "version: got '1', wanted another one than the current '1'"),
        ("canary", "2", 1.5, Status.INVALID_INPUT, "weight: got 1.5, wanted at least 0 and less than 1"),
        ("canary", "2", float("nan"), Status.INVALID_INPUT, "weight: got nan, wanted at least 0 and less than 1"),
        ("rollback", "", 0.0, Status.INVALID_INPUT, "got no earlier version to return to"),
        ("twist", "2", 0.0, Status.INVALID_INPUT, "rollout: got 'twist', wanted promote, rollback or canary"),
    ],
)
def test_a_rollout_that_is_not_possible(rollout: str, version: str, weight: float, status: Status, reason: str) -> None:
    controller = a_used_version("2")
    sent(controller, Load)
    roll(controller, rollout, version, weight)
    for scan in sent(controller, Scan):
        report_versions(controller, "1", "2", resident=(ONE,), scans=(scan.id,))
    [answer] = answers(controller)
    assert (answer.status, answer.reason) == (status, reason)


def test_a_current_version_that_cannot_be_served_is_not_promoted() -> None:
    controller = a_new_controller()
    broken = [ModelReport(a_spec("sum", "1"), None, "a key is wrong")]
    register(controller, *broken, pages=8)
    roll(controller, "promote", "1")
    for scan in sent(controller, Scan):
        register(controller, *broken, pages=8, scans=(scan.id,))
    [answer] = answers(controller)
    assert (answer.status, answer.reason) == (Status.FAILED, "sum/1: UNAVAILABLE: a key is wrong")


def test_a_canary_must_have_the_signature_of_the_current_version() -> None:
    controller = a_used_version()
    pin_the_first(controller)
    other = msgspec.structs.replace(a_spec("sum", "2"), outputs=())
    register(controller, a_report(), a_report(other), pages=8, resident=(ONE,))
    roll(controller, "canary", "2", 0.5)
    [answer] = answers(controller)
    assert answer.reason == "version: got '2', wanted one with the inputs and outputs of sum/1"


def test_a_rollout_of_an_unknown_model() -> None:
    controller = a_used_version()
    controller.handle(0, FRONTEND, Admit(7, "other", "", True, "rollback"), ())
    [answer] = answers(controller)
    assert answer.status == Status.UNKNOWN_MODEL


def test_the_rollouts_survive_a_restart() -> None:
    controller = promoted(a_used_version("2"))
    states = [out.message for out in controller.out if out.to == controller.store]
    assert states[-1] == ControllerState({"sum": Rollout("2", "1", pinned=True)})
    again = a_new_controller()
    again.restore(states[-1])
    report_versions(again, "1", "2", "3", resident=(ONE,))
    assert traffic(again) == {"1": 0.0, "2": 1.0, "3": 0.0}
    assert not [out for out in again.out if out.to == again.store]


def test_a_promoted_version_that_is_missing_is_shown_and_no_other_one_takes_its_place() -> None:
    controller = a_new_controller()
    controller.restore(ControllerState({"sum": Rollout("2", pinned=True)}))
    report_versions(controller, "1")
    announced = [models for models in sent(controller, Models, FRONTEND) if models.id == 0][-1]
    states = {state.spec.version: (state.state, state.traffic) for state in announced.models}
    assert states == {"1": ("READY", 0.0), "2": ("UNAVAILABLE", 1.0)}
    report_versions(controller, "1", "3")
    announced = [models for models in sent(controller, Models, FRONTEND) if models.id == 0][-1]
    assert [state.state for state in announced.models] == ["READY", "UNAVAILABLE", "READY"]
    report_versions(controller, "1", "2")
    assert traffic(controller) == {"1": 0.0, "2": 1.0}


def test_a_promotion_without_a_version_follows_the_newest_one() -> None:
    controller = a_new_controller()
    controller.restore(ControllerState({"sum": Rollout("1", pinned=True)}))
    report_versions(controller, "1", "2")
    roll(controller, "promote")
    finish_load(controller, TWO)
    finish_rollout(controller)
    report_versions(controller, "1", "2", "10")
    assert traffic(controller)["10"] == 1.0


def test_a_promotion_without_a_version_fails_if_then_none_can_answer_and_follows_the_newest_one() -> None:
    controller = a_new_controller()
    controller.restore(ControllerState({"sum": Rollout("1", pinned=True)}))
    register(controller, ModelReport(a_spec("sum", "1"), None, "a key is wrong"), pages=8)
    roll(controller, "promote")
    answer = finish_rollout(controller)
    assert (answer.status, answer.reason) == (Status.FAILED, "a key is wrong")
    report_versions(controller, "1", "2")
    assert traffic(controller) == {"1": 0.0, "2": 1.0}


def test_a_version_that_is_gone_from_the_repository_serves_until_the_newer_one_is_loaded() -> None:
    controller = a_used_version()
    report_versions(controller, "1", "2", retired="1", resident=(ONE,))
    assert traffic(controller) == {"1": 1.0, "2": 0.0}
    assert not sent(controller, Unload)
    finish_load(controller, TWO)
    assert traffic(controller) == {"1": 0.0, "2": 1.0}
    tick(controller, s(1))
    assert not sent(controller, Unload), "frontends may have requests for it"
    settle_all(controller)
    tick(controller, s(1))
    assert [unload.model for unload in sent(controller, Unload)] == [ONE]
