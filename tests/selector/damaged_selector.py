"""A selector with two applications, of which one may be damaged."""

from __future__ import annotations

from typing import Any

from harness.builders import sent
from horologe_common.clock import ms
from horologe_common.status import Status
from horologe_common.wire import Acknowledged, Answer, Applications, Feedback, Observation, Query, Submit
from selector.selector_harness import FRONTEND, SelectorHarness, UnavailableStore

OK, REFUSED = int(Status.OK), int(Status.REFUSED)


class TwoApplications(SelectorHarness):
    """A selector with the applications `digits` and `letters`; `store` may hold records of an earlier one."""

    def __init__(self, store: Any = None, policy: str = "exp4") -> None:
        self.store: UnavailableStore = UnavailableStore() if store is None else store
        super().__init__("ab", self.store)
        self.number = 0
        if store is None:
            for name in ("digits", "letters"):
                self.declare_application(name, ("a", "b"), policy=policy)

    def query(self, name: str, context: str = "") -> Answer:
        """Query an application, and let its models answer. Return the answer."""
        self.number += 1
        hashed = self.number.to_bytes(32, "big")
        query = Query(self.number, "", ms(100), 1, hashed, application=name, context=context)
        self.send(FRONTEND, query)
        for submit in sent(self.selector, Submit):
            self.send_prediction(submit, 1)
        (answer,) = sent(self.selector, Answer)
        return answer

    def learn(self, name: str, context: str, prediction: bytes) -> int:
        """Send feedback, and return its status."""
        self.number += 1
        self.send(FRONTEND, Feedback(self.number, name, (Observation((2.0,), prediction, context),)))
        ((status,),) = [message.statuses for message in sent(self.selector, Acknowledged, FRONTEND)]
        return status

    def call(self, message: Any) -> Applications:
        self.send(FRONTEND, message)
        return next(reply for reply in sent(self.selector, Applications, FRONTEND) if reply.id == message.id)
