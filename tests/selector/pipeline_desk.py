"""A selector with a pipeline, and the frontend, controller, workers and driver around it."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.builders import a_spec, sent
from horologe_common.clock import ms, s
from horologe_common.core.protocol import PeerConnected
from horologe_common.models import ModelSpec, TensorSpec
from horologe_common.wire import (
    Answer,
    Dispatch,
    DriverReady,
    ModelCall,
    Outputs,
    Query,
    RowStatus,
    RunDone,
    Ship,
    Shipped,
    Tensor,
)
from horologe_selector.driver import PipelineDefinition, PipelinesRead
from selector.selector_harness import FRONTEND, WORKER, SelectorHarness

SELECTOR = "selector/0#1"
MODEL = a_spec("m")
ROW = np.ones((1, *MODEL.inputs[0].shape[1:]), "f4").tobytes()
INPUTS = (Tensor(MODEL.inputs[0].name, "FP32", (1, *MODEL.inputs[0].shape[1:]), len(ROW)),)
OUTPUTS = (Tensor(MODEL.outputs[0].name, "FP32", (1, *MODEL.outputs[0].shape[1:]), 4),)
RESULT = (Tensor("y", "FP32", (1, 1), 4),)
FOUR = bytes(4)


def a_pipeline(name: str) -> PipelineDefinition:
    sides = (TensorSpec(INPUTS[0].name, "FP32", INPUTS[0].shape),), (TensorSpec("y", "FP32", (1, 1)),)
    return PipelineDefinition(ModelSpec(name, "1", "pipeline", *sides, (1,), False, ms(100), content_hash=name), "f.py")


class PipelineDesk(SelectorHarness):
    """A selector with two pipelines, `p` and `q`, and a model `m`."""

    start_ns = s(1000)

    def __init__(self, **fields: Any) -> None:
        super().__init__("m", **fields)
        self.receive("", PeerConnected(WORKER))
        self.receive("drivers", PipelinesRead((a_pipeline("p"), a_pipeline("q"))))
        for name in "pq":
            self.receive(f"driver/{name}", DriverReady())
        self.selector.out.clear()

    def receive(self, sender: str, message: Any, buffers: Any = ()) -> None:
        self.send(sender, message, buffers)

    def advance(self, ns: int) -> None:
        self.now_ns += ns
        self.receive("", None)

    def take(self, kind: type) -> list[Any]:
        """Return the messages of a type that were sent, and forget them."""
        return sent(self.selector, kind)

    def query(self, number: int = 1, model: str = "p/1", budget_ns: int = ms(100), client: str = "") -> int:
        """Send a query, ship its inputs, and return its run; 0 if it is refused."""
        self.receive(FRONTEND, Query(number, model, budget_ns, 1, client=client))
        if not (dispatches := self.take(Dispatch)):
            return 0
        (dispatch,) = dispatches
        assert (dispatch.worker, dispatch.input_ids) == (SELECTOR, (number,))
        run: int = dispatch.action_id
        self.receive(FRONTEND, Ship(run, FRONTEND, (Shipped(number, INPUTS),)), [ROW])
        return run

    def call(self, run: int, call: int, model: str = "m", place: int = 0, parents: Any = (), driver: str = "p") -> None:
        message = ModelCall(run, call, model, place or call, parents, INPUTS)
        self.receive(f"driver/{driver}", message, [ROW])

    def outputs(self, submit: int) -> None:
        message = Outputs(1, (RowStatus(submit, 1),), OUTPUTS, "m/1", 1, 0, ms(2))
        self.receive(WORKER, message, [FOUR])

    def finish(self, run: int, driver: str = "p") -> None:
        self.receive(f"driver/{driver}", RunDone(run, 0, "", RESULT), [FOUR])

    def answer(self) -> Answer:
        (answer,) = self.take(Answer)
        assert isinstance(answer, Answer)
        return answer

    def is_at_rest(self) -> bool:
        pipelines = self.selector.pipelines
        return not len(pipelines.runs) and not pipelines.staging.ids() and not list(self.selector.inflight.waiters())
