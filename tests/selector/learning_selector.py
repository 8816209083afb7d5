"""Builders for test_selector_learning.py and test_selector_declarations.py."""

from __future__ import annotations

from typing import Any

from harness.builders import sent
from horologe_common.clock import ms
from horologe_common.status import Status
from horologe_common.wire import (
    Acknowledged,
    Answer,
    ApplicationInfo,
    Applications,
    Feedback,
    Observation,
    Query,
    Submit,
)
from selector.selector_harness import FRONTEND, SelectorHarness, UnavailableStore

OK, REFUSED = int(Status.OK), int(Status.REFUSED)


class LearningSelector(SelectorHarness):
    """Selector with its store and the application `digits` of the models `a` and `b`."""

    def __init__(self, store: UnavailableStore | None = None, **settings: Any) -> None:
        self.store: UnavailableStore = store or UnavailableStore()
        super().__init__("ab", self.store, **settings)
        self.number = 0
        self.straggling = False
        if not self.store.list_family("applications"):
            self.declare_application(models=("a", "b"), policy="exp4")

    def query_answer(self, context: str = "") -> bytes:
        """Return the prediction id of a query. `a` predicts 1, `b` predicts 2; if `straggling`, after the deadline."""
        self.number += 1
        self.send(FRONTEND, self.make_query(context))
        submits = {submit.model: submit for submit in sent(self.selector, Submit)}
        self.send_prediction(submits["a/1"], 1)
        if self.straggling:
            self.advance_by(ms(100))
        self.send_prediction(submits["b/1"], 2)
        (answer,) = sent(self.selector, Answer)
        assert answer.status == OK
        return answer.prediction

    def make_query(self, context: str = "") -> Query:
        return Query(
            self.number, "", ms(100), 1, self.number.to_bytes(32, "big"), application="digits", context=context
        )

    def send_feedback(self, *items: Observation) -> None:
        self.number += 1
        self.send(FRONTEND, Feedback(self.number, "digits", items))

    def pop_statuses(self) -> list[tuple[int, ...]]:
        return [message.statuses for message in sent(self.selector, Acknowledged, FRONTEND)]

    def model_statistics(self, context: str = "") -> dict[str, tuple[float, int]]:
        """Return weight and number of observations by model."""
        sent(self.selector, Applications)
        self.send(FRONTEND, ApplicationInfo(1, "digits", context))
        (reply,) = sent(self.selector, Applications, FRONTEND)
        return {each.model: (round(each.weight, 3), each.observations) for each in reply.applications[0].statistics}


def repredict_submits(harness: LearningSelector, prediction: bytes) -> list[Submit]:
    """Send feedback with inputs, and return the Submits of its reprediction."""
    sent(harness.selector, Submit)
    harness.number += 1
    harness.send_feedback(Observation((1.0,), prediction, "ann", (), harness.make_query("ann")))
    return sent(harness.selector, Submit)
