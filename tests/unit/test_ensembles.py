"""Applications in the selector: models asked, combined at the deadline at the latest, one answer each."""

from __future__ import annotations

import random
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_spec, a_state, sent
from horologe_common.applications import Application
from horologe_common.clock import ms, s
from horologe_common.core import Gone, Joined
from horologe_common.snapshot import restore, snapshot
from horologe_common.status import Status
from horologe_common.wire import (
    Answer,
    ApplicationInfo,
    Applications,
    Cancel,
    Declare,
    Models,
    Outcome,
    Outputs,
    Ping,
    Pong,
    Query,
    Release,
    Rollback,
    RowStatus,
    Submit,
    Tensor,
    Withdraw,
)
from horologe_selector.core import Selector
from horologe_selector.keeper import serve
from horologe_selector.losses import LOSSES
from horologe_selector.settings import Settings
from horologe_selector.store import Write, Written
from horologe_selector.stores.memory import Memory

FRONTEND, CONTROLLER, WORKER = "frontend/0#1", "controller/0#1", "worker/0#1"
HASH = bytes(32)


class Desk:
    """A selector with the models `a`, `b`, `c`, a keeper that always says yes, and verbs to drive it."""

    def __init__(self, **application: Any) -> None:
        self.selector = Selector("selector/0#1", Settings(store="memory"), random.Random(1))
        self.now_ns = 0
        self.submits: dict[str, Submit] = {}
        self.store = Memory()
        self.tell(FRONTEND, Joined(FRONTEND))
        self.tell(CONTROLLER, Joined(CONTROLLER))
        self.models("a", "b", "c")
        if application:
            self.declare(**application)

    def tell(self, sender: str, message: Any, buffers: Any = ()) -> None:
        self.selector.handle(self.now_ns, sender, message, buffers)
        self.settle()

    def settle(self) -> None:
        """Tick, and be the keeper, until nothing changes any more."""
        while True:
            self.selector.tick(self.now_ns)
            asked = [out.message for out in self.selector.out if out.to.startswith("store/")]
            self.selector.out = [out for out in self.selector.out if not out.to.startswith("store/")]
            if not asked:
                break
            for message in asked:
                for reply in serve(self.store, [message]):
                    self.selector.handle(self.now_ns, "store/0", reply, ())
        for submit in sent(self.selector, Submit):
            self.submits[submit.model.partition("/")[0]] = submit

    def models(self, *names: str) -> None:
        states = tuple(a_state(a_spec(name)) for name in names)
        self.tell(CONTROLLER, Models(0, states))

    def declare(self, name: str = "digits", models: tuple[str, ...] = ("a", "b", "c"), **fields: Any) -> Applications:
        fields.setdefault("policy", "majority")
        self.tell(FRONTEND, Declare(7, Application(name, models, **fields)))
        return next(told for told in sent(self.selector, Applications, FRONTEND) if told.id == 7)

    def ask(
        self, number: int = 1, budget_ms: float = 100, context: str = "", rows: int = 1, hashed: bytes = HASH
    ) -> None:
        query = Query(number, "", ms(budget_ms), rows, hashed, application="digits", context=context)
        self.tell(FRONTEND, query)

    def lands(self, model: str, *labels: int) -> None:
        """The model's prediction, as INT64 labels, a row each."""
        tensor = Tensor("y", "INT64", (len(labels),), 8 * len(labels))
        row = RowStatus(self.submits[model].id, len(labels))
        self.tell(WORKER, Outputs(1, (row,), (tensor,)), [struct.pack(f"<{len(labels)}q", *labels)])

    def fails(self, model: str, status: Status = Status.REFUSED) -> None:
        self.tell(CONTROLLER, Outcome(self.submits[model].id, int(status), "no room"))

    def at(self, at_ms: float) -> None:
        self.now_ns = ms(at_ms)
        self.settle()

    def answer(self) -> tuple[Answer, list[int]]:
        """The one answer that is out, with its predictions."""
        found = [(out.message, out.buffers) for out in self.selector.out if isinstance(out.message, Answer)]
        sent(self.selector, Answer)
        ((answer, buffers),) = found
        values = np.frombuffer(buffers[0], "<i8").tolist() if buffers else []
        return answer, values

    def answers(self) -> int:
        return sum(isinstance(out.message, Answer) for out in self.selector.out)


def test_the_models_of_an_application_are_asked_and_combined() -> None:
    desk = Desk(models=("a", "b", "c"))
    desk.ask()
    assert sorted(desk.submits) == ["a", "b", "c"]
    assert {submit.application for submit in desk.submits.values()} == {"digits"}
    desk.lands("a", 3)
    desk.lands("b", 5)
    assert not desk.answers()
    desk.lands("c", 3)
    answer, values = desk.answer()
    assert (answer.status, values, answer.models, answer.missing) == (0, [3], ("a", "b", "c"), ())
    assert answer.confidence == pytest.approx(2 / 3)
    assert not answer.defaulted
    assert not answer.lingers
    desk.selector.check()


def test_what_is_not_execution_until_the_answer_counts_as_queue() -> None:
    desk = Desk(models=("a", "b"))
    desk.at(1000)
    desk.ask(1)
    desk.lands("a", 3)
    desk.at(1007)
    desk.lands("b", 3)
    assert desk.answer()[0].queue_ns == ms(7)
    desk.ask(2)
    assert desk.answer()[0].queue_ns == 0


def test_rows_are_combined_one_by_one() -> None:
    desk = Desk(models=("a", "b", "c"))
    desk.ask(rows=2)
    desk.lands("a", 3, 1)
    desk.lands("b", 5, 1)
    desk.lands("c", 3, 1)
    answer, values = desk.answer()
    assert values == [3, 1]
    assert answer.confidence == pytest.approx(2 / 3)


def test_at_the_deadline_what_is_there_is_combined() -> None:
    desk = Desk(models=("a", "b", "c"))
    desk.ask(budget_ms=50)
    desk.lands("a", 3)
    desk.at(40)
    assert not desk.answers()
    desk.at(48)
    answer, values = desk.answer()
    assert (values, answer.models, answer.missing) == ([3], ("a",), ("b", "c"))
    assert answer.confidence == pytest.approx(1 / 3)
    assert answer.lingers
    desk.lands("b", 4)
    assert not desk.answers()
    assert not sent(desk.selector, Release)
    desk.lands("c", 4)
    assert sent(desk.selector, Release) == [Release((1,))]
    desk.selector.check()


def test_a_missing_model_is_replaced_by_its_average() -> None:
    desk = Desk(models=("a", "b", "c"), cache=False)
    for number in range(1, 4):
        desk.ask(number)
        for model, label in (("a", 1), ("b", 9), ("c", 9)):
            desk.lands(model, label)
        desk.answer()
    desk.ask(5)
    desk.lands("a", 1)
    desk.lands("b", 9)
    desk.at(99)
    answer, values = desk.answer()
    assert values == [9]
    assert (answer.models, answer.missing) == (("a", "b"), ("c",))
    assert answer.confidence == pytest.approx(1 / 3)


def test_who_comes_too_late_is_waited_for_a_second_then_given_up() -> None:
    desk = Desk(models=("a", "b"))
    desk.ask(budget_ms=50)
    desk.lands("a", 3)
    desk.at(50)
    desk.answer()
    desk.at(1500)
    assert sent(desk.selector, Cancel, CONTROLLER) == [Cancel((desk.submits["b"].id,))]
    assert sent(desk.selector, Release) == [Release((1,))]
    desk.selector.check()


def test_a_refused_model_is_missing_at_once() -> None:
    desk = Desk(models=("a", "b"))
    desk.ask()
    desk.lands("a", 3)
    desk.fails("b")
    answer, values = desk.answer()
    assert (values, answer.missing) == ([3], ("b",))


def test_a_model_that_is_not_served_is_missing_at_once() -> None:
    desk = Desk(models=("a", "z"))
    desk.ask()
    desk.lands("a", 3)
    answer, _ = desk.answer()
    assert answer.missing == ("z",)


def test_with_nothing_there_the_default_is_answered_and_flagged() -> None:
    desk = Desk(models=("a", "b"), default=7.0)
    desk.ask(budget_ms=50)
    desk.at(50)
    answer, values = desk.answer()
    assert (answer.status, values, answer.defaulted, answer.confidence, answer.models) == (0, [7], True, 0.0, ())


def test_below_the_threshold_the_default_is_answered_for_those_rows() -> None:
    desk = Desk(models=("a", "b", "c"), default=7.0, confidence=0.9)
    desk.ask(rows=2)
    desk.lands("a", 3, 1)
    desk.lands("b", 5, 1)
    desk.lands("c", 3, 1)
    answer, values = desk.answer()
    assert (values, answer.defaulted) == ([7, 1], True)


@pytest.mark.parametrize(("end", "status"), [("refused", Status.REFUSED), ("failed", Status.FAILED)])
def test_without_a_default_it_fails_as_its_models_did(end: str, status: Status) -> None:
    desk = Desk(models=("a", "b"))
    desk.ask()
    for model in ("a", "b"):
        desk.fails(model, status)
    answer, _ = desk.answer()
    assert (answer.status, answer.reason) == (status, "no room"), end


def test_without_a_default_nothing_in_time_is_refused_before_the_deadline() -> None:
    desk = Desk(models=("a",))
    desk.ask(budget_ms=50)
    desk.at(49)
    answer, _ = desk.answer()
    assert (answer.status, answer.reason) == (Status.REFUSED, "no model answered in time")


def test_the_way_back_is_taken_off_the_deadline() -> None:
    desk = Desk(models=("a",), default=1.0)
    desk.at(1000)
    (ping,) = sent(desk.selector, Ping, FRONTEND)[-1:]
    desk.now_ns += ms(20)
    desk.tell(FRONTEND, Pong(ping.sent_ns, 0))
    desk.ask(budget_ms=50)
    desk.at(1048)
    assert not desk.answers()
    desk.at(1050)
    assert desk.answer()[0].defaulted


def test_a_way_back_that_was_long_once_leaves_half_of_the_time() -> None:
    desk = Desk(models=("a",), default=1.0)
    desk.at(1000)
    for _ in range(5):
        desk.tell(FRONTEND, Pong(0, 0))
    desk.ask(budget_ms=50)
    desk.at(1024)
    assert not desk.answers()
    desk.at(1025)
    assert desk.answer()[0].defaulted


def test_equal_inputs_are_answered_from_the_cache() -> None:
    desk = Desk(models=("a", "b"))
    desk.ask(1)
    desk.lands("a", 3)
    desk.lands("b", 3)
    assert not desk.answer()[0].cached
    desk.submits.clear()
    desk.ask(2)
    answer, values = desk.answer()
    assert (values, answer.cached, desk.submits) == ([3], True, {})


def test_two_queries_with_equal_inputs_fly_together() -> None:
    desk = Desk(models=("a",))
    desk.ask(1)
    first = desk.submits.pop("a")
    desk.ask(2)
    assert not desk.submits
    desk.submits["a"] = first
    desk.lands("a", 3)
    assert desk.answers() == 2


def test_without_a_cache_nothing_is_shared() -> None:
    desk = Desk(models=("a",), cache=False)
    desk.ask(1)
    desk.lands("a", 3)
    desk.submits.clear()
    desk.ask(2)
    assert list(desk.submits) == ["a"]


def test_every_answer_has_a_name_of_its_own_that_ends_with_the_inputs() -> None:
    desk = Desk(models=("a",))
    desk.ask(1)
    desk.lands("a", 3)
    first, _ = desk.answer()
    desk.ask(2)
    second, _ = desk.answer()
    assert first.prediction != second.prediction
    assert first.prediction.endswith(HASH)


def test_shadows_are_asked_but_not_waited_for_nor_answered_from() -> None:
    desk = Desk(models=("a",), shadows=("b",), policy="static")
    desk.ask()
    assert desk.submits["b"].best_effort
    assert not desk.submits["a"].best_effort
    desk.lands("a", 3)
    answer, values = desk.answer()
    assert (values, answer.models, answer.lingers) == ([3], ("a",), True)
    desk.lands("b", 3)
    assert sent(desk.selector, Release) == [Release((1,))]
    desk.tell(FRONTEND, ApplicationInfo(9, "digits"))
    ((state,),) = [told.applications for told in sent(desk.selector, Applications) if told.id == 9]
    shadow = state.standings[1]
    assert (shadow.model, shadow.shadow, shadow.answered, shadow.agreed) == ("b", True, 1, 1)


def test_a_context_keeps_its_model_in_an_a_b_test() -> None:
    desk = Desk(models=("a", "b"), policy="static", cache=False)
    asked = []
    for number in range(40):
        desk.submits.clear()
        desk.ask(number + 1, context="user-7" if number % 2 else f"user-{number}")
        asked.append(next(iter(desk.submits)))
    assert len(set(asked[1::2])) == 1
    assert set(asked[::2]) == {"a", "b"}


def test_outputs_of_any_kind_pass_through_where_one_model_is_asked() -> None:
    desk = Desk(models=("a",), task="any", policy="static")
    desk.ask()
    desk.lands("a", 3, 4, 5)
    (out,) = [out for out in desk.selector.out if isinstance(out.message, Answer)]
    assert [tensor.name for tensor in out.message.outputs] == ["y"]
    assert out.message.outputs[0].shape == (3,)


def test_what_is_passed_through_agrees_with_nothing() -> None:
    desk = Desk(models=("a",), shadows=("b",), task="any", policy="static")
    desk.ask()
    desk.lands("a", 3)
    desk.lands("b", 3)
    assert [tally.agreed for tally in desk.selector.registry.running["digits"].tallies.values()] == [0, 0]


def test_a_cancelled_query_frees_everything() -> None:
    desk = Desk(models=("a", "b"))
    desk.ask()
    desk.tell(FRONTEND, Cancel((1,)))
    (first, second) = sent(desk.selector, Cancel, CONTROLLER)
    assert {*first.ids, *second.ids} == {submit.id for submit in desk.submits.values()}
    assert sent(desk.selector, Release) == [Release((1,))]
    assert not desk.answers()
    desk.selector.check()


def test_a_frontend_that_goes_takes_its_queries_with_it() -> None:
    desk = Desk(models=("a", "b"))
    desk.ask()
    desk.tell(FRONTEND, Gone(FRONTEND))
    assert not desk.selector.ensembles
    desk.selector.check()


def test_predictions_that_cannot_be_read_count_as_missing() -> None:
    desk = Desk(models=("a", "b"))
    desk.ask()
    desk.lands("a", 3)
    desk.lands("b", 3, 4)
    answer, values = desk.answer()
    assert (values, answer.missing) == ([3], ("b",))


def test_a_selector_that_waits_for_its_models_can_be_restored_from_a_snapshot() -> None:
    desk = Desk(models=("a", "b"))
    desk.ask()
    desk.lands("a", 3)
    again = restore(snapshot(desk.selector))
    again.check()
    assert again.wakeup_ns() == desk.selector.wakeup_ns()


def test_declared_applications_are_announced_changed_rolled_back_and_withdrawn() -> None:
    desk = Desk()
    assert desk.declare(models=("a",), policy="").status == 0
    for _ in range(2):  # as a program does whenever it starts
        desk.declare(models=("a", "b"))
    desk.tell(FRONTEND, Rollback(3, "digits"))
    told = [told for told in sent(desk.selector, Applications, FRONTEND) if told.applications]
    assert told[-1].applications[0].application.models == ("a",)
    assert told[-1].applications[0].revision == 3
    desk.tell(FRONTEND, Withdraw(4, "digits"))
    assert [one.id for one in sent(desk.selector, Applications, FRONTEND)] == [4, 0]
    desk.ask()
    assert desk.answer()[0].status == Status.UNKNOWN_MODEL


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"policy": "best"}, "policy"),
        ({"models": ()}, "models"),
        ({"models": ("a", "a")}, "models"),
        ({"task": "detection"}, "task"),
        ({"loss": "hinge"}, "loss"),
        ({"settings": {"theta": 1.0}, "policy": "exp4"}, "settings"),
        ({"name": "a/b"}, "name"),
        ({"confidence": 2.0}, "confidence"),
        ({"task": "any", "policy": "exp4"}, "policy"),
    ],
)
def test_a_declaration_that_cannot_be_served_is_refused_by_name(fields: dict[str, Any], field: str) -> None:
    told = Desk().declare(**fields)
    assert told.status == Status.INVALID_INPUT
    assert told.reason.startswith(field)


def test_no_more_applications_are_declared_than_settings_allow() -> None:
    desk = Desk()
    desk.selector = Selector("selector/0#1", Settings(store="memory", applications=1), random.Random(1))
    desk.tell(FRONTEND, Joined(FRONTEND))
    assert desk.declare("one", ("a",), policy="").status == 0
    told = desk.declare("two", ("a",), policy="")
    assert (told.status, told.reason) == (Status.REFUSED, "1 applications are declared already")
    assert desk.declare("one", ("b",), policy="").status == 0


def test_the_metrics_of_an_application_go_with_it() -> None:
    desk = Desk(models=("a",))
    desk.selector.refresh_stats()
    assert any(key[1:2] == ("digits",) for key in desk.selector.stats.values)
    desk.tell(FRONTEND, Withdraw(4, "digits"))
    assert not any(key[1:2] == ("digits",) for key in desk.selector.stats.values)


def test_applications_are_there_again_after_a_restart() -> None:
    desk = Desk(models=("a",))
    after = Desk()
    after.store = desk.store
    after.selector = Selector("selector/0#2", Settings(store="memory"), random.Random(1))
    after.tell(FRONTEND, Joined(FRONTEND))
    (announced,) = sent(after.selector, Applications, FRONTEND)
    assert [state.application.name for state in announced.applications] == ["digits"]


@pytest.mark.parametrize("task", ["classes", "regression"])
def test_a_selector_restored_from_a_snapshot_goes_on_with_what_was_asked(task: str) -> None:
    desk = Desk(models=("a", "b"), policy="exp4", task=task)
    desk.ask()
    desk.selector = restore(snapshot(desk.selector), LOSSES)
    desk.lands("a", 3)
    desk.lands("b", 3)
    answer, _ = desk.answer()
    assert (answer.status, answer.models) == (0, ("a", "b"))
    desk.selector.check()
    assert desk.selector.registry.running["digits"].loss(3.0, 3.5) == (1.0 if task == "classes" else 0.5)


def test_while_the_store_is_away_declarations_are_refused() -> None:
    desk = Desk()
    selector = desk.selector
    selector.handle(0, FRONTEND, Declare(7, Application("digits", ("a",))), ())
    (write,) = sent(selector, Write)
    selector.handle(0, "store/0", Written(write.changes, None, "the state store is away"), ())
    (told,) = [told for told in sent(selector, Applications) if told.id == 7]
    assert (told.status, told.reason) == (Status.REFUSED, "the state store is away")


@given(
    st.lists(st.sampled_from(["a lands", "b lands", "c lands", "a fails", "b fails", "c fails"]), max_size=6),
    st.booleans(),
    st.booleans(),
)
def test_one_answer_and_one_release_whatever_happens(events: list[str], default: bool, cancel: bool) -> None:
    desk = Desk(models=("a", "b"), shadows=("c",), default=7.0 if default else None)
    desk.ask(budget_ms=50)
    ended: set[str] = set()
    for step, event in enumerate(events):
        model, _, how = event.partition(" ")
        desk.now_ns = ms(10 * step)
        if model in ended:
            continue
        ended.add(model)
        if how == "lands":
            desk.lands(model, 1)
        else:
            desk.fails(model)
    answered = desk.answers()
    if cancel:
        desk.tell(FRONTEND, Cancel((1,)))
    for later_s in (10, 20):
        desk.now_ns = s(later_s)
        desk.settle()
    if answered or not cancel:
        answer, _ = desk.answer()
        assert answer.status == 0 or not default
        assert bool(sent(desk.selector, Release)) == (answer.lingers or cancel)
    else:
        assert not desk.answers()
    assert not desk.selector.ensembles
    desk.selector.check()
