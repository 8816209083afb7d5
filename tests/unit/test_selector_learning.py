"""The whole selector learning: asked, told what was true, and acknowledged when its store has it."""

from __future__ import annotations

from typing import Any

import msgspec

from builders import sent
from horologe_common.applications import Application
from horologe_common.clock import ms, s
from horologe_common.status import Status
from horologe_common.transport.reactor import Drains
from horologe_common.wire import (
    Acknowledged,
    Answer,
    ApplicationInfo,
    Applications,
    Declare,
    Feedback,
    Observation,
    Query,
    Release,
    Rollback,
    Submit,
    Withdraw,
)
from horologe_selector.store import ReadRecords, RecordChange, RecordsWritten, WriteRecords
from selector_desk import FRONTEND, Desk, Unplugged

OK, REFUSED = int(Status.OK), int(Status.REFUSED)


class House(Desk):
    """A selector with the models `a` and `b` in the application `digits`, and its store."""

    def __init__(self, store: Unplugged | None = None, **settings: Any) -> None:
        self.store: Unplugged = store or Unplugged()
        super().__init__("ab", self.store, **settings)
        self.number = 0
        self.slow = False
        if not self.store.list_family("applications"):
            self.declare(models=("a", "b"), policy="exp4")

    def ask(self, context: str = "") -> bytes:
        """What the answer is named: `a` says 1 and `b` says 2, which with `slow` comes after the deadline."""
        self.number += 1
        self.tell(FRONTEND, self.query(context))
        submits = {submit.model: submit for submit in sent(self.selector, Submit)}
        self.predicts(submits["a/1"], 1)
        if self.slow:
            self.later(ms(100))
        self.predicts(submits["b/1"], 2)
        (answer,) = sent(self.selector, Answer)
        assert answer.status == OK
        return answer.prediction

    def query(self, context: str = "") -> Query:
        return Query(
            self.number, "", ms(100), 1, self.number.to_bytes(32, "big"), application="digits", context=context
        )

    def truth(self, *items: Observation) -> None:
        self.number += 1
        self.tell(FRONTEND, Feedback(self.number, "digits", items))

    def statuses(self) -> list[tuple[int, ...]]:
        return [message.statuses for message in sent(self.selector, Acknowledged, FRONTEND)]

    def standing(self, context: str = "") -> dict[str, tuple[float, int]]:
        """Weight and observations by model."""
        sent(self.selector, Applications)
        self.tell(FRONTEND, ApplicationInfo(1, "digits", context))
        (told,) = sent(self.selector, Applications, FRONTEND)
        return {one.model: (round(one.weight, 3), one.observations) for one in told.applications[0].statistics}


def test_feedback_on_an_answer_is_learned_kept_and_acknowledged() -> None:
    house = House()
    house.truth(Observation((1.0,), house.ask("ann")))
    assert house.statuses() == [(OK,)]
    assert house.standing("ann") == {"a": (0.55, 1), "b": (0.45, 1)}
    assert house.standing("bob") == {"a": (0.5, 1), "b": (0.5, 1)}
    assert House(house.store).standing("ann")["a"][0] == 0.55


def test_whoever_asks_how_a_context_stands_leaves_no_trace() -> None:
    house = House(contexts_memory=2)
    house.truth(Observation((1.0,), house.ask("ann")), Observation((1.0,), house.ask("bob")))
    contexts = house.selector.contexts
    used = [one.key for one in contexts._contexts]
    for context in ("eve", "ann", "zoe", ""):
        house.standing(context)
    assert [one.key for one in contexts._contexts] == used
    after = House(house.store, number=2)
    assert after.standing("ann")["a"][0] == 0.55
    assert after.standing("eve")["a"][0] == 0.5
    assert after.selector.contexts.count_contexts("digits") == 0


def test_once_the_store_is_back_a_context_stands_as_it_is_stored() -> None:
    house = House()
    house.truth(Observation((1.0,), house.ask("ann")))
    after = House(house.store, number=2)
    house.store.away = True
    assert after.standing("ann")["a"][0] == 0.5
    house.store.away = False
    after.later(ms(1000))
    assert after.standing("ann")["a"][0] == 0.55


def test_while_the_store_is_away_or_slow_a_context_stands_as_in_memory_or_as_new() -> None:
    house = House(House().store)
    house.store.away = True
    assert house.standing("ann")["a"][0] == 0.5
    selector = House().selector
    selector.handle(0, FRONTEND, ApplicationInfo(7, "digits", "ann"), ())
    selector.tick(0)
    assert selector.wakeup_ns() == ms(20)
    assert len(sent(selector, ReadRecords)) == 1
    selector.handle(ms(1), FRONTEND, ApplicationInfo(8, "digits", "ann"), ())
    selector.tick(ms(20))
    assert [one.id for one in sent(selector, Applications, FRONTEND)] == [7, 8]
    assert not sent(selector, ReadRecords), "one read for both"


def test_whoever_asks_how_an_application_stands_is_told_when_it_is_withdrawn_meanwhile() -> None:
    selector = House().selector
    selector.handle(0, FRONTEND, ApplicationInfo(7, "digits", "ann"), ())
    assert not sent(selector, Applications, FRONTEND), "its state is being read"
    selector.registry.on_withdraw(0, FRONTEND, Withdraw(8, "digits"))
    (write,) = sent(selector, WriteRecords)
    selector.handle(0, selector.store, RecordsWritten(write.changes, [0]), ())
    selector.tick(0)
    told = {one.id: one.status for one in sent(selector, Applications, FRONTEND) if one.id}
    assert told == {7: int(Status.UNKNOWN_MODEL), 8: OK}


def test_a_policy_that_is_tried_and_rolled_back_costs_nothing_that_was_learned_before() -> None:
    house = House()
    house.truth(Observation((1.0,), house.ask("ann")))
    learned = house.standing("ann")
    house.tell(FRONTEND, Declare(7, Application("digits", ("b",), policy="thompson")))
    assert house.standing("ann") == {"b": (1.0, 1)}
    house.tell(FRONTEND, Rollback(8, "digits"))
    assert {model: weight for model, (weight, _) in house.standing("ann").items()} == {
        model: weight for model, (weight, _) in learned.items()
    }


def test_a_straggler_is_judged_by_what_it_said_too_late() -> None:
    house = House()
    house.slow = True
    house.truth(Observation((2.0,), house.ask()))
    assert house.statuses() == [(OK,)]
    assert house.standing() == {"a": (0.45, 1), "b": (0.55, 1)}


def test_what_is_not_in_the_cache_any_more_is_predicted_again_from_the_inputs() -> None:
    house = House(cache_bytes=0)
    prediction = house.ask("ann")
    house.truth(Observation((1.0,), prediction))
    assert house.statuses() == [(int(Status.MISSING_INPUT),)]
    sent(house.selector, Release)
    house.number += 1
    house.truth(Observation((1.0,), prediction, "ann", (), house.query("ann")))
    assert house.statuses() == []
    for submit in sent(house.selector, Submit):
        house.predicts(submit, {"a/1": 1, "b/1": 2}[submit.model])
    assert house.statuses() == [(OK,)]
    assert len(sent(house.selector, Release)) == 1
    assert house.standing("ann") == {"a": (0.55, 1), "b": (0.45, 1)}


def test_while_its_store_is_away_it_answers_learns_and_acknowledges_later() -> None:
    house = House(unsaved=2)
    known = house.ask("ann")
    house.store.away = True
    house.truth(Observation((1.0,), known))
    predictions = [house.ask("ann"), house.ask("new")]
    house.truth(*[Observation((1.0,), prediction) for prediction in predictions])
    assert house.statuses() == []
    (weight, observations), _ = house.standing("ann").values()
    assert weight > 0.55
    assert observations == 2
    assert isinstance(house.selector, Drains)
    assert not house.selector.drained()
    house.store.away = False
    house.later(ms(500))
    assert sorted(house.statuses()) == [(OK,), (OK, REFUSED)]
    assert house.selector.drained()


def asked_again(house: House, prediction: bytes) -> list[Submit]:
    """What is submitted for feedback whose inputs came along."""
    sent(house.selector, Submit)
    house.number += 1
    house.truth(Observation((1.0,), prediction, "ann", (), house.query("ann")))
    return sent(house.selector, Submit)


def test_feedback_on_an_answer_of_models_that_have_been_taken_away() -> None:
    house = House(cache_bytes=0)
    prediction = house.ask("ann")
    house.declare(models=("a",), policy="exp4")
    (submit,) = asked_again(house, prediction)
    house.predicts(submit, 1)
    assert house.statuses() == [(OK,)]


def test_feedback_under_way_when_its_application_is_withdrawn_leaves_nothing_in_the_store() -> None:
    house = House(cache_bytes=0)
    submits = asked_again(house, house.ask("ann"))
    house.tell(FRONTEND, Withdraw(2, "digits"))
    for submit in submits:
        house.predicts(submit, 1)
    assert house.statuses() == [(int(Status.UNKNOWN_MODEL),)]
    assert house.store.list_family("contexts/digits") == []


def test_what_another_application_of_the_same_name_and_revision_has_learned_breaks_nothing() -> None:
    house = House()
    house.truth(Observation((1.0,), house.ask("ann")))
    (left,) = house.store.list_family("contexts/digits")
    house.tell(FRONTEND, Withdraw(2, "digits"))
    house.store.write_changes([RecordChange(left.key, 0, left.data)])
    house.declare(models=("c", "d"), policy="exp4")
    assert house.standing("ann") == house.standing("ann") == {"c": (0.5, 0), "d": (0.5, 0)}


def test_a_query_under_way_when_its_application_is_declared_anew_undoes_nothing() -> None:
    house = House()
    house.number += 1
    house.tell(FRONTEND, house.query("ann"))
    submits = sent(house.selector, Submit)
    house.declare(models=("a", "b"), policy="thompson")
    for submit in asked_again(house, b""):
        house.predicts(submit, 1)
    learned = house.standing("ann")
    for submit in submits:
        house.predicts(submit, 1)
    assert [answer.status for answer in sent(house.selector, Answer)] == [OK]
    assert house.standing("ann") == learned


def test_feedback_with_inputs_whose_predictions_are_cached_is_learned_at_once() -> None:
    house = House()
    house.ask("ann")
    again = msgspec.structs.replace(house.query("ann"), id=99)
    feedback = Feedback(77, "digits", (Observation((1.0,), b"", "ann", (), again),))
    house.selector.handle(house.now_ns, FRONTEND, feedback, ())
    house.selector.tick(house.now_ns)
    wakeup_ns = house.selector.wakeup_ns()
    assert wakeup_ns is not None
    assert wakeup_ns <= house.now_ns


def test_a_declaration_that_cannot_be_read_harms_no_other_and_can_be_replaced() -> None:
    store = House().store
    store.write_changes(
        [RecordChange("applications\nAAA", 0, b"\x00nonsense"), RecordChange("applications\nBBB", 0, b"\x92\x01\x90")]
    )
    house = House(store)
    assert list(house.selector.registry.active) == ["digits"]
    for name in ("AAA", "BBB"):
        house.tell(FRONTEND, Declare(5, Application(name, ("a",))))
    assert [told.status for told in sent(house.selector, Applications) if told.id == 5] == [OK, OK]


def test_a_query_that_waits_for_its_state_ends_when_its_application_is_withdrawn() -> None:
    house = House()
    house.number += 1
    house.selector.handle(house.now_ns, FRONTEND, house.query("zoe"), ())
    house.selector.tick(house.now_ns)
    house.selector.out.clear()
    house.tell(FRONTEND, Withdraw(2, "digits"))
    for submit in sent(house.selector, Submit):
        house.predicts(submit, 1)
    assert [answer.status for answer in sent(house.selector, Answer)] == [OK]


def test_what_cannot_be_saved_in_time_is_lost_not_silent() -> None:
    house = House()
    prediction = house.ask()
    house.store.away = True
    house.truth(Observation((1.0,), prediction))
    house.later(s(5))
    assert house.statuses() == [(int(Status.LOST),)]
    house.store.away = False
    house.truth(Observation((1.0,), prediction))
    house.later(s(1))
    assert house.statuses() == [(OK,)]
    assert house.standing() == {"a": (0.55, 1), "b": (0.45, 1)}


def test_what_was_learned_before_a_restart_and_is_sent_again_with_its_inputs_counts_once() -> None:
    house = House()
    prediction = house.ask("ann")
    house.truth(Observation((1.0,), prediction))
    assert house.statuses() == [(OK,)]
    after = House(house.store, number=2)
    for _ in range(2):
        for submit in asked_again(after, prediction):
            after.predicts(submit, {"a/1": 1, "b/1": 2}[submit.model])
        assert after.statuses() == [(OK,)]
    assert {model: weight for model, (weight, _) in after.standing("ann").items()} == {"a": 0.55, "b": 0.45}
