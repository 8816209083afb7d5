"""A gateway for tests of HTTP: models echo their inputs, or answer with the status in their name."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.application_answers import answer_tensors
from horologe_common.applications import Application
from horologe_common.clock import s
from horologe_common.models import ModelSpec, TensorSpec
from horologe_common.status import Status
from horologe_common.wire import (
    Acknowledged,
    Activity,
    Admit,
    Answer,
    ApplicationInfo,
    Applications,
    ApplicationState,
    Declare,
    Describe,
    Description,
    Feedback,
    Models,
    ModelState,
    ModelStatistics,
    ShareState,
    Tensor,
    Tune,
    Tuning,
    Watch,
    Withdraw,
)
from horologe_frontend.console.traffic import Totals
from horologe_frontend.core.frontend import Frontend
from horologe_frontend.core.stats import ModelStats
from horologe_frontend.gateway import Gateway
from horologe_frontend.http.http_messages import HttpResponse
from horologe_frontend.settings import FrontendSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.wire import Predict
    from horologe_frontend.http.http_messages import HttpRequest
    from horologe_frontend.oip.handler import OipHandler


def a_model(name: str, *tensors: TensorSpec, version: str = "1", batched: bool = True) -> ModelSpec:
    """Return a model that echoes its inputs: the input `in...` is returned as the output `out...`."""
    outputs = tuple(TensorSpec(t.name.replace("in", "out"), t.datatype, t.shape) for t in tensors)
    return ModelSpec(name, version, "onnx", tensors, outputs, (1, 2, 4, 8), batched, 50_000_000)


FLOATS = TensorSpec("in", "FP32", (-1, 4))
ENDS = {
    "refused": Answer(0, Status.REFUSED, reason="no room before the deadline", retry_after_ns=1_500_000),
    "full": Answer(0, Status.REFUSED, reason="no place", retry_after_ns=s(9), refuses_ns=s(9), place_ns=s(9)),
    "late": Answer(0, Status.LATE, reason="finished after the deadline"),
    "lost": Answer(0, Status.LOST, reason="worker died"),
    "failed": Answer(0, Status.FAILED, reason="model raised"),
    "too-large": Answer(0, Status.TOO_LARGE, reason="inputs: too many bytes"),
}
SPECS = (
    a_model("echo", FLOATS, version="1"),
    a_model("echo", FLOATS, version="10"),
    a_model("echo", FLOATS, version="9"),
    a_model("all", *(TensorSpec(f"in{t}", t, (-1,)) for t in ("BOOL", "INT8", "INT64", "UINT64", "FP64", "BYTES"))),
    a_model("half", TensorSpec("in", "FP16", (-1, 2))),
    a_model("text", TensorSpec("in", "BYTES", (-1,))),
    a_model("wide", TensorSpec("in", "FP32", (-1, -1))),
    a_model("huge", TensorSpec("in", "UINT8", (-1,)), batched=False),
    a_model("odd/näme", FLOATS),
    a_model("slow", FLOATS),
    a_model("broken", FLOATS),
    *(a_model(name, FLOATS) for name in ENDS),
)


APPLICATIONS = {
    "digits": Application("digits", ("echo",), default=7.0, settings={"weights": {"echo": 1.0}}),
    "texts": Application("texts", ("echo",), task="any"),
    "echo": Application("echo", ("echo",)),
}
PREDICTION = b"\1" * 40


def an_answer(application: Application, predict: Predict, buffers: Sequence[Buffer]) -> tuple[Answer, Sequence[Buffer]]:
    """Return the prediction 3 with confidence 2/3 for each row. For task `any`, echo the inputs."""
    rows = predict.inputs[0].shape[0]
    outputs: tuple[Tensor, ...]
    payloads: Sequence[Buffer]
    if application.task == "any":
        outputs, payloads = tuple(msgspec.structs.replace(tensor, name="out") for tensor in predict.inputs), buffers
    else:
        outputs, payloads = answer_tensors(application, [3] * rows, [2 / 3] * rows, [False] * rows)
    answer = Answer(
        0, 0, outputs, confidence=2 / 3, models=("echo",), missing=("gone",), cached=True, prediction=PREDICTION
    )
    return answer, payloads


class FakeGateway(Gateway):
    """Echo the inputs. `slow` answers when `slow_answers` is set, models in ENDS with that status, `broken` raises."""

    def __init__(self) -> None:
        self.core = Frontend("frontend/0#1", FrontendSettings(), lambda header, buffers: b"")
        gone = ModelState(a_model("gone", FLOATS), "UNAVAILABLE", "unloaded")
        self.core.catalogue.replace_models([*map(ModelState, SPECS), gone])
        self.core.catalogue.replace_pipelines("selector/0#1", ())
        declared = [ApplicationState(application, 1) for application in APPLICATIONS.values()]
        self.core.declared.replace_announcement("selector/0#1", declared)
        self.clients: list[str] = []
        self.predicts: list[Predict] = []
        self.calls: list[Any] = []
        self.statuses: tuple[int, ...] = (0,)
        """Statuses of the reply to feedback."""
        self.tasks: dict[int, asyncio.Future[Any]] = {}
        self._last_id = 0
        self.cancelled = 0
        self.ready = True
        self.slow_answers = asyncio.Event()
        self.totals: list[Totals] = []
        self.refused: list[str] = []
        """Models of the requests that were refused without a Predict."""
        self.activity = Activity(0, 1)
        self.watches: list[Watch] = []

    def send(
        self, message: Any, buffers: Sequence[Buffer], on_reply: Callable[[Any, Sequence[Buffer]], None], client: str
    ) -> int:
        self._check(message)
        task = asyncio.ensure_future(self.predict(message, buffers, client))
        task.add_done_callback(lambda task: None if task.cancelled() else on_reply(*task.result()))
        self._last_id += 1
        self.tasks[self._last_id] = task
        return self._last_id

    def count_refused(self, model: str) -> None:
        self.refused.append(model)

    def cancel(self, key: int) -> None:
        self.tasks.pop(key).cancel()

    def _check(self, predict: Predict) -> None:
        if predict.model == "broken":
            raise RuntimeError("a fault of ours")

    async def predict(
        self, predict: Predict, buffers: Sequence[Buffer], client: str
    ) -> tuple[Answer, Sequence[Buffer]]:
        self._check(predict)
        self.predicts.append(predict)
        self.clients.append(client)
        if not predict.model:
            return an_answer(APPLICATIONS[predict.application], predict, buffers)
        if predict.model in ENDS:
            return ENDS[predict.model], ()
        if predict.model == "slow":
            try:
                await self.slow_answers.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        spec = self.core.catalogue.find_model(predict.model, predict.version)
        outputs = tuple(Tensor(t.name.replace("in", "out"), t.datatype, t.shape, t.nbytes) for t in predict.inputs)
        pairs = [(t, b) for t, b in zip(outputs, buffers, strict=True) if t.name in (predict.outputs or (t.name,))]
        answer = Answer(0, Status.OK, tuple(t for t, _ in pairs), "", 0, spec.name, spec.version, 1000, 2000, 2)
        self.core.stats_by_model.setdefault(spec.key, ModelStats()).count_answer(10, answer, 1, 5000, 5000)
        return answer, [b for _, b in pairs]

    async def call(self, message: Any, buffers: Sequence[Buffer] = ()) -> Any:
        self.calls.append(message)
        match message:
            case Admit():
                states = self.core.catalogue.model_states(message.model)
                unknown = f"model {message.model!r} is not in the repository"
                return Models(0, states) if states else Models(0, (), Status.UNKNOWN_MODEL, unknown)
            case Feedback():
                return Acknowledged(0, self.statuses, "the store is away" if any(self.statuses) else "")
            case Declare():
                return Applications(0, (ApplicationState(message.application, 1),))
            case Watch():
                self.watches.append(message)
                return self.activity
            case Describe():
                return Description(0, (ShareState("worker/0#1", 0, "cpu", 8, 7, ("echo/10",), 0, 0),), "edf", 3)
            case Tune():
                return Tuning(0, b'{"journal":[]}')
            case ApplicationInfo(name=""):
                return Applications(0, tuple(ApplicationState(application, 1) for application in APPLICATIONS.values()))
        if message.name not in APPLICATIONS:
            return Applications(0, (), Status.UNKNOWN_MODEL, f"application: got {message.name!r}")
        if isinstance(message, Withdraw):
            return Applications(0, ())
        standing = ModelStatistics("echo", 1.0, False, 5, 1, 4, 3, 1.0)
        return Applications(0, (ApplicationState(APPLICATIONS[message.name], 2, (standing,), 3),))

    def traffic_totals(self, since_ns: int = 0) -> list[Totals]:
        return self.totals

    def is_ready(self) -> bool:
        return self.ready


async def respond(handler: OipHandler, request: HttpRequest) -> HttpResponse:
    """Return the response that the server would send: a refusal of the head, or the response of the handler."""
    if refusal := handler.refuse(request):
        return refusal
    response: asyncio.Future[HttpResponse] = asyncio.get_running_loop().create_future()
    outcome = handler.start(request, response.set_result)
    return outcome if isinstance(outcome, HttpResponse) else await response
