"""Feedback in a selector core with a store, and the predictions that it refers to."""

from __future__ import annotations

import struct
from typing import Any

from horologe_common.application_answers import HEAD_BYTES
from horologe_common.applications import undeclared_application
from horologe_common.clock import s
from horologe_common.core.protocol import Out
from horologe_common.status import Status
from horologe_common.wire import Acknowledged, Feedback, Observation, Release, Tensor
from horologe_selector.core.feedback.feedback import FeedbackProcessor
from horologe_selector.core.predictions.cache import PredictionCache
from horologe_selector.policy import Selection
from horologe_selector.settings import SelectorSettings
from selector.contexts_harness import BOTH, A, B, ContextsHarness, RecordedLosses

FRONTEND = "frontend/0#1"
OK, LOST = int(Status.OK), int(Status.LOST)
MISSING, INVALID, REFUSED = int(Status.MISSING_INPUT), int(Status.INVALID_INPUT), int(Status.REFUSED)


class FeedbackHarness(ContextsHarness):
    """Feedback processing of a selector with logged answers, and a store that replies step by step."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.cache = PredictionCache(1 << 20)
        self.applications = {self.active.application.name: self.active}
        self.out: list[Out] = []
        self.feedback = FeedbackProcessor(
            SelectorSettings(**settings),
            self.applications,
            self.contexts,
            self.cache,
            undeclared_application,
            lambda out: self.out.append(out),
        )
        self.number = 0
        self.released: list[int] = []

    def log_answer(
        self, context: str = "", own: bool = False, selection: Selection = BOTH, **predictions: tuple[int, ...]
    ) -> bytes:
        """Log an answer and cache the predictions of `digits-a` and `digits-b`. Return the prediction id."""
        self.number += 1
        prediction = self.number.to_bytes(HEAD_BYTES, "big") + self.number.to_bytes(32, "little")
        keys = {}
        for model, values in {A: predictions.get("a"), B: predictions.get("b")}.items():
            keys[model] = b"%s/1\0hash" % model.encode() + (prediction if own else prediction[HEAD_BYTES:])
            if values:
                tensor = Tensor("label", "INT64", (len(values),), 8 * len(values))
                data = struct.pack(f"<{len(values)}q", *values)
                self.cache.store(self.now_ns, keys[model], (tensor,), [data], s(60))
        self.feedback.predictions.add(prediction, self.active.application.name, context, selection, keys)
        return prediction

    def send_feedback(self, *items: Observation, application: str = "digits") -> int:
        self.number += 1
        self.feedback.on_feedback(self.now_ns, FRONTEND, Feedback(self.number, application, items))
        self.tick()
        return self.number

    def acknowledge(self, *items: Observation) -> Acknowledged:
        """Send feedback, let the store save it, and return the reply."""
        number = self.send_feedback(*items)
        self.run_until_idle()
        return self.pop_acknowledgements()[number]

    def tick(self, later_ns: int = 0) -> None:
        self.now_ns += later_ns
        self.contexts.tick(self.now_ns)
        self.feedback.tick(self.now_ns)
        self.feedback.check()

    def run_until_idle(self) -> None:
        self.tick()
        while self.requests or self.replies:
            self.serve_request()
            self.deliver_reply()

    def pop_acknowledgements(self) -> dict[int, Acknowledged]:
        outs, self.out = self.out, []
        assert all(out.to == FRONTEND for out in outs)
        self.released += [input_id for out in outs if isinstance(out.message, Release) for input_id in out.message.ids]
        messages = [out.message for out in outs if isinstance(out.message, Acknowledged)]
        by_id = {message.id: message for message in messages}
        assert len(by_id) == len(messages)
        return by_id

    def observed_losses(self, context: str = "") -> list[float]:
        state = self.get_state(context)
        assert isinstance(state, RecordedLosses)
        return state.losses


def make_observation(prediction: bytes, *truths: float, **fields: Any) -> Observation:
    return Observation(truths or (7.0,), prediction, **fields)
