"""A selector with an application, pipelines and a model, and an example of each message that it receives."""

from __future__ import annotations

from typing import Any

from harness.builders import a_spec, a_state
from harness.forged_messages import check_sendable
from horologe_common.applications import Application
from horologe_common.clock import ms, s
from horologe_common.status import Status
from horologe_common.wire import (
    Answer,
    ApplicationInfo,
    Cancel,
    Declare,
    Dispatch,
    Drain,
    DriverReady,
    Feedback,
    ModelCall,
    Models,
    Observation,
    Outcome,
    Outputs,
    PipelineInfo,
    Pong,
    Query,
    Rollback,
    RowStatus,
    RunDone,
    Settle,
    Ship,
    Shipped,
    Submit,
    Withdraw,
)
from selector.pipeline_desk import INPUTS, OUTPUTS, RESULT, SELECTOR, PipelineDesk
from selector.selector_harness import CONTROLLER, FRONTEND, WORKER

OK = int(Status.OK)
DIGITS = Application("digits", ("m",), task="regression")
QUERY = Query(50, "m/1", ms(100), 1, bytes(32), False, 3, 4, "", "", True)
MESSAGES: tuple[tuple[str, Any], ...] = (
    (FRONTEND, QUERY),
    (FRONTEND, Query(51, "", ms(100), 1, bytes(32), False, 3, 4, "digits", "ann", True)),
    (FRONTEND, Query(52, "p/1", ms(100), 1)),
    (FRONTEND, Cancel((1, 2, 999))),
    (FRONTEND, Declare(60, Application("letters", ("m",), task="regression", settings={"weights": {"m": 1.0}}))),
    (FRONTEND, Withdraw(61, "letters")),
    (FRONTEND, Rollback(62, "letters")),
    (FRONTEND, ApplicationInfo(63, "digits", "ann")),
    (FRONTEND, PipelineInfo(64, "p")),
    (
        FRONTEND,
        Feedback(65, "digits", (Observation((1.0,), bytes(64), "ann", (), Query(66, "", ms(50), 1, bytes(32))),)),
    ),
    (FRONTEND, Drain()),
    (FRONTEND, Pong(5, 6)),
    (FRONTEND, Ship(1, FRONTEND, (Shipped(3, INPUTS),))),
    (CONTROLLER, Models(0, (a_state(a_spec("m")), a_state(a_spec("other"))))),
    (CONTROLLER, Outcome(1, 5, "no room", 7)),
    (CONTROLLER, Settle(7, ("m/1",))),
    (CONTROLLER, Dispatch(7, WORKER, (1, 2))),
    (WORKER, Outputs(1, (RowStatus(1, 1),), OUTPUTS, "m/1", 1, 0, ms(2), "hash-m", 1.5)),
    (SELECTOR, Submit(1, "p/1", ms(50), 1, FRONTEND, 3)),
    ("driver/p", ModelCall(1, 1, "m", 1, (), INPUTS)),
    ("driver/p", RunDone(1, 0, "", RESULT)),
    ("driver/p", DriverReady()),
    ("driver/p", Pong(5, 6)),
)


class ForgedDesk(PipelineDesk):
    """A selector with an application, pipelines and a model, and open queries. Its store answers at once."""

    def __init__(self) -> None:
        super().__init__(pipelines="pipelines")
        self.receive(FRONTEND, Declare(1, DIGITS))
        self.receive(FRONTEND, Query(1, "m/1", s(5), 1))
        self.receive(FRONTEND, Query(2, "", s(5), 1, b"2" * 32, application="digits", context="ann"))
        self.run = self.query(3, budget_ns=s(5))
        self.selector.out.clear()

    def receive(self, sender: str, message: Any, buffers: Any = ()) -> None:
        """Deliver a message, and check that what the selector sends can be encoded."""
        super().receive(sender, message, buffers)
        check_sendable(self.selector)

    def answer_submits(self) -> None:
        """Let the models predict whatever has been submitted."""
        while submits := self.take(Submit):
            for submit in submits:
                if submit.model == "m/1":
                    self.outputs(submit.id)

    def serve(self, number: int) -> None:
        """Check that a model, an application and a pipeline are served."""
        self.receive(CONTROLLER, Models(0, (a_state(a_spec("m")),)))
        self.receive("driver/q", DriverReady())
        self.answer_submits()
        self.selector.out.clear()
        for query in (
            Query(number, "m/1", ms(100), 1),
            Query(number + 1, "", ms(100), 1, number.to_bytes(32, "big"), application="digits", context="bob"),
        ):
            self.receive(FRONTEND, query)
            self.answer_submits()
        run = self.query(number + 2, "q/1")
        self.finish(run, "q")
        self.selector.refresh_stats()
        statuses = {answer.id: answer.status for answer in self.take(Answer)}
        assert {statuses.get(number + place) for place in range(3)} == {OK}, statuses
