"""A connected frontend core, and the messages about applications that tests send to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.builders import a_spec, a_state, a_tensor, sent, some_bytes
from horologe_common.applications import Application
from horologe_common.clock import s
from horologe_common.core.protocol import PeerConnected
from horologe_common.status import Status
from horologe_common.wire import (
    Acknowledged,
    Answer,
    Applications,
    ApplicationState,
    Feedback,
    Models,
    Observation,
    Predict,
    Query,
)
from horologe_common.wire.frames import decode_array
from horologe_frontend.core.frontend import Frontend
from horologe_frontend.core.sampling import SampleLimits
from horologe_frontend.digest import digest
from horologe_frontend.settings import FrontendSettings

if TYPE_CHECKING:
    from horologe_common.models import ModelSpec

CLIENT, SELECTOR, CONTROLLER, WORKER = "client/aa", "selector/0#1", "controller/0#1", "worker/0#1"
OTHER = "selector/1#1"
"""A second selector."""
NOW = s(100)
LIMITS = SampleLimits()
SAFE = Application("digits", ("one", "two/1"), slo_ms=40, default=7.0)
BARE = Application("bare", ("one",), slo_ms=40)
SPECS = (a_spec("one", cache=True), a_spec("two", batch_sizes=(1, 2), cache=True))
"""Their requests go to a selector. See test_plain_requests.py for the others."""


def starting_frontend(samples: SampleLimits = LIMITS, **settings: Any) -> Frontend:
    """Return a frontend with selector, controller and worker, which have announced nothing."""
    frontend = Frontend("frontend/0#1", FrontendSettings(**settings), digest, samples)
    for address in (SELECTOR, CONTROLLER, WORKER):
        frontend.handle(0, address, PeerConnected(address), ())
    frontend.tick(0)
    return frontend


def connected_frontend(
    *applications: Application, specs: Any = SPECS, samples: SampleLimits = LIMITS, **settings: Any
) -> Frontend:
    """Return a frontend with selector, controller and worker, two models, and these applications."""
    frontend = starting_frontend(samples, **settings)
    frontend.handle(0, CONTROLLER, Models(0, tuple(map(a_state, specs))), ())
    frontend.handle(0, SELECTOR, Models(0, ()), ())  # it has no pipelines
    announce(frontend, *(applications or (SAFE, BARE)))
    return frontend


def a_frontend(spec: ModelSpec | None = None, **settings: Any) -> Frontend:
    """Return a connected frontend with one model, which is called `sum` by default."""
    return connected_frontend(specs=(spec or a_spec(cache=True),), **settings)


def send_predict(
    frontend: Frontend, predict: Predict, now_ns: int = 0, client: str = CLIENT, buffers: Any = None
) -> None:
    rows = predict.inputs[0].shape[0] if predict.inputs else 0
    frontend.handle(now_ns, client, predict, [some_bytes(rows)] if buffers is None else buffers)
    frontend.tick(now_ns)


def announce(frontend: Frontend, *applications: Application, selector: str = SELECTOR, revision: int = 1) -> None:
    states = tuple(ApplicationState(application, revision) for application in applications)
    frontend.handle(0, selector, Applications(0, states), ())


def request_application(
    frontend: Frontend, application: str = "digits", rows: int = 1, now_ns: int = NOW, **fields: Any
) -> Any:
    """Send a request for an application. Return the query that the selector gets, or None."""
    predict = Predict(7, "", "", fields.pop("budget_ns", 0), (a_tensor(rows),), application=application, **fields)
    frontend.handle(now_ns, CLIENT, predict, [some_bytes(rows)])
    frontend.tick(now_ns)
    frontend.check()
    return next(iter(sent(frontend, Query, SELECTOR)), None)


def the_answer(frontend: Frontend) -> Answer:
    (answer,) = sent(frontend, Answer, CLIENT)
    return answer


def default_outputs(frontend: Frontend) -> Any:
    (out,) = [out for out in frontend.out if isinstance(out.message, Answer)]
    assert out.message.status == Status.OK
    assert out.message.defaulted
    assert (out.message.confidence, out.message.models) == (0.0, ())
    pairs = zip(out.message.outputs, out.buffers, strict=True)
    return {tensor.name: decode_array(tensor, buffer).tolist() for tensor, buffer in pairs}


def an_observation(*truths: float, prediction: bytes | None = None, **fields: Any) -> Observation:
    """Return an item of feedback, for a prediction unless it has inputs."""
    if prediction is None:
        prediction = b"" if fields.get("inputs") else b"P" * 40
    return Observation(truths or (3.0,), prediction, **fields)


def send_feedback(frontend: Frontend, *items: Observation, application: str = "digits", buffers: Any = ()) -> Any:
    """Send feedback. Return the message that the selector gets, or None."""
    frontend.handle(NOW, CLIENT, Feedback(9, application, items), buffers)
    frontend.check()
    return next(iter(sent(frontend, Feedback, SELECTOR)), None)


def acknowledgement(frontend: Frontend) -> tuple[list[Status], str]:
    (message,) = sent(frontend, Acknowledged, CLIENT)
    assert message.id == 9
    return list(map(Status, message.statuses)), message.reason


def connect(frontend: Frontend, address: str, *applications: Application) -> None:
    frontend.handle(NOW, address, PeerConnected(address), ())
    announce(frontend, *applications, selector=address)


def two_selectors(**fields: Any) -> Frontend:
    """Return a frontend with two selectors that serve the same applications."""
    frontend = connected_frontend(**fields)
    connect(frontend, OTHER, SAFE, BARE)
    return frontend
