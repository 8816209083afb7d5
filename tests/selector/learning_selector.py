"""A selector whose applications learn from feedback, with a store that may hold records of an earlier selector."""

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
from selector.selector_harness import FRONTEND, SelectorHarness

OK, REFUSED = int(Status.OK), int(Status.REFUSED)
PREDICTED = {"a/1": 1, "b/1": 2}
"""What each model predicts."""


class LearningSelector(SelectorHarness):
    """Selector with the applications `digits` and `letters` of the models `a` and `b`, unless a store is given."""

    def __init__(self, store: Any = None, policy: str = "exp4", **settings: Any) -> None:
        super().__init__("ab", store, **settings)
        self.number = 0
        self.straggling_ns = 0
        """How long after the query `b` predicts."""
        if store is None:
            for name in ("digits", "letters"):
                self.declare_application(name, ("a", "b"), policy=policy)

    def make_query(self, context: str = "", name: str = "digits") -> Query:
        return Query(self.number, "", ms(100), 1, self.number.to_bytes(32, "big"), application=name, context=context)

    def query(self, name: str = "digits", context: str = "") -> Answer:
        """Query an application, and let its models predict. Return the answer."""
        self.number += 1
        self.send(FRONTEND, self.make_query(context, name))
        for submit in sorted(sent(self.selector, Submit), key=lambda submit: submit.model):
            if submit.model == "b/1":
                self.advance_by(self.straggling_ns)
            self.predict(submit)
        (answer,) = sent(self.selector, Answer)
        return answer

    def query_answer(self, context: str = "") -> bytes:
        """Return the prediction id of a query of `digits`."""
        answer = self.query(context=context)
        assert answer.status == OK
        return answer.prediction

    def predict(self, submit: Submit) -> None:
        self.send_prediction(submit, PREDICTED[submit.model])

    def send_feedback(self, *items: Observation, application: str = "digits") -> None:
        self.number += 1
        self.send(FRONTEND, Feedback(self.number, application, items))

    def pop_statuses(self) -> list[tuple[int, ...]]:
        return [message.statuses for message in sent(self.selector, Acknowledged, FRONTEND)]

    def learn(self, name: str, context: str, prediction: bytes) -> int:
        """Send feedback, and return its status."""
        self.send_feedback(Observation((2.0,), prediction, context), application=name)
        ((status,),) = self.pop_statuses()
        return status

    def repredict_submits(self, prediction: bytes) -> list[Submit]:
        """Send feedback with inputs in the context `ann`, and return the Submits of its reprediction."""
        sent(self.selector, Submit)
        self.number += 1
        self.send_feedback(Observation((1.0,), prediction, "ann", (), self.make_query("ann")))
        return sent(self.selector, Submit)

    def call(self, message: Any) -> Applications:
        self.send(FRONTEND, message)
        return next(reply for reply in sent(self.selector, Applications, FRONTEND) if reply.id == message.id)

    def model_statistics(self, context: str = "") -> dict[str, tuple[float, int]]:
        """Return weight and number of observations by model of `digits`."""
        (state,) = self.call(ApplicationInfo(1, "digits", context)).applications
        return {each.model: (round(each.weight, 3), each.observations) for each in state.statistics}
