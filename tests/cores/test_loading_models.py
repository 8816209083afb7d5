"""Models that are LOADING at the controller, the selector, the frontend and the SDK: requests wait or are REFUSED."""

from __future__ import annotations

import random
from typing import Any

import pytest

from client.talk import Talk
from controller.controller_builders import (
    FRONTEND,
    WORKER,
    a_new_controller,
    finish,
    register,
    state,
    states,
    submit,
    tick,
)
from fakes.frontend import ECHO
from frontend.frontend_builders import CLIENT, CONTROLLER, SELECTOR, connected_frontend, starting_frontend
from harness.builders import a_predict, a_report, a_spec, a_state, sent, some_bytes
from horologe_common.applications import Application
from horologe_common.clock import NEVER_NS, ms, s
from horologe_common.core.protocol import PeerDisconnected
from horologe_common.models import ModelSpec
from horologe_common.status import Status, UnknownModel
from horologe_common.wire import (
    Admit,
    Answer,
    Infer,
    Load,
    ModelReport,
    Models,
    ModelState,
    Outcome,
    Register,
    Scan,
    Share,
)
from horologe_controller.core.controller import Controller
from horologe_frontend.core.frontend import Frontend
from horologe_selector.core.selector import Selector
from horologe_selector.settings import SelectorSettings
from profiler.profiler_builders import a_profiler, run_sample


def unread(name: str = "sum", version: str = "1") -> ModelSpec:
    return ModelSpec(name, version, "", (), ())


def loading(name: str = "sum", text: str = "measuring") -> ModelReport:
    return ModelReport(unread(name), None, loading=text)


def outcomes(controller: Controller) -> list[tuple[int, Status]]:
    return [(outcome.id, Status(outcome.status)) for outcome in sent(controller, Outcome)]


def test_the_progress_of_a_model_is_announced() -> None:
    controller = a_new_controller()
    register(controller, loading(), a_report(a_spec("other")))
    assert states(controller) == {"sum": ("LOADING", "worker/0: measuring"), "other": ("READY", "")}
    register(controller, ModelReport(a_spec(), None, "no licence"), a_report(a_spec("other")))
    assert state(controller) == ("UNAVAILABLE", "no licence")


def test_a_request_waits_for_a_model_that_is_loading() -> None:
    controller = a_new_controller()
    register(controller, loading())
    submit(controller, 1, budget_ms=500)
    assert outcomes(controller) == []
    register(controller, a_report(), now_ns=ms(100))
    assert outcomes(controller) == []
    [load] = sent(controller, Load)
    finish(controller, load, ms(101))
    assert [infer.model for infer in sent(controller, Infer)] == ["sum/1"]


def test_a_request_is_refused_if_its_model_is_still_loading_at_its_deadline() -> None:
    controller = a_new_controller()
    register(controller, loading())
    submit(controller, 1, budget_ms=200)
    assert (controller.wakeup_ns() or NEVER_NS) <= ms(200)
    tick(controller, ms(201))
    [outcome] = sent(controller, Outcome)
    assert Status(outcome.status) == Status.REFUSED
    assert "'sum/1' is loading: worker/0: measuring" in outcome.reason


def test_a_request_does_not_wait_any_longer_for_a_model_that_has_failed() -> None:
    controller = a_new_controller()
    register(controller, loading())
    submit(controller, 1)
    register(controller, ModelReport(a_spec(), None, "no licence"), now_ns=ms(1))
    assert [status for _, status in outcomes(controller)] == [Status.UNKNOWN_MODEL]


def test_a_restarted_worker_makes_its_models_loading_with_their_signature() -> None:
    controller = a_new_controller()
    register(controller, a_report())
    controller.handle(1, WORKER, PeerDisconnected(WORKER), ())
    tick(controller, 1)
    assert state(controller) == ("LOADING", "no worker serves it now")
    again = "worker/0#2"
    register(controller, loading(text="reading its files"), worker=again, now_ns=2)
    assert state(controller) == ("LOADING", "worker/0: reading its files")
    assert controller.cluster.specs["sum/1"] == a_spec()
    assert not sent(controller, Scan), "it reads the files now"
    submit(controller, 5, now_ns=3)
    assert outcomes(controller) == []
    register(controller, a_report(), worker=again, now_ns=ms(5))
    assert state(controller) == ("READY", "")
    assert [load.model for load in sent(controller, Load)] == ["sum/1"]
    assert outcomes(controller) == []


def test_a_model_that_one_worker_serves_is_ready_while_another_loads_it() -> None:
    controller = a_new_controller()
    register(controller, a_report())
    register(controller, loading(), worker="worker/1#1")
    assert state(controller) == ("READY", "")


def test_a_failed_load_is_not_repeated_because_another_model_becomes_ready() -> None:
    controller = a_new_controller()
    register(controller, a_report(), loading("other"))
    submit(controller, 1)
    [load] = sent(controller, Load)
    finish(controller, load, ms(1), Status.FAILED, reason="no device")
    assert state(controller) == ("UNAVAILABLE", "no device")
    reports = a_report(), a_report(a_spec("other"))
    controller.handle(ms(2), WORKER, Register((Share(0, "cpu", 10),), reports, scans=()), ())
    tick(controller, ms(2))
    assert states(controller) == {"sum": ("UNAVAILABLE", "no device"), "other": ("READY", "")}
    controller.handle(ms(3), FRONTEND, Admit(9, "sum", "", True), ())
    tick(controller, ms(3))
    [scan] = sent(controller, Scan)
    scanned = Register((Share(0, "cpu", 10),), reports, scans=(scan.id,))
    controller.handle(ms(4), WORKER, scanned, ())
    tick(controller, ms(4))
    assert state(controller) == ("READY", "")


def test_an_unloaded_model_stays_so_while_its_worker_restarts() -> None:
    controller = a_new_controller()
    register(controller, a_report())
    controller.handle(1, FRONTEND, Admit(9, "sum", "", False), ())
    controller.handle(2, WORKER, PeerDisconnected(WORKER), ())
    register(controller, loading(), worker="worker/0#2", now_ns=3)
    assert state(controller) == ("UNAVAILABLE", "unloaded")


def announce(frontend: Frontend, *states: ModelState, now_ns: int = 0, incomplete: str = "") -> None:
    frontend.handle(now_ns, CONTROLLER, Models(0, states, incomplete=incomplete), ())
    frontend.tick(now_ns)


def predict(frontend: Frontend, model: str = "sum", **fields: Any) -> list[Answer]:
    """Send a request. Return the frontend's own answer; nothing if it forwards the request."""
    frontend.handle(s(1), CLIENT, a_predict(7, model, **fields), [some_bytes(1)])
    frontend.tick(s(1))
    return sent(frontend, Answer, CLIENT)


def test_a_frontend_refuses_requests_until_the_signature_is_known() -> None:
    frontend = connected_frontend()
    announce(frontend, ModelState(unread(), "LOADING", "worker/0: measuring"), a_state(a_spec("one")))
    (answer,) = predict(frontend)
    assert (Status(answer.status), answer.retry_after_ns > 0) == (Status.REFUSED, True)
    assert "'sum/1' is loading: worker/0: measuring" in answer.reason
    announce(frontend, ModelState(a_spec(), "LOADING", "worker/0: measuring"))
    assert not predict(frontend)


def test_an_earlier_version_answers_while_a_new_one_is_loading() -> None:
    frontend = connected_frontend()
    announce(frontend, a_state(), ModelState(unread(version="2"), "LOADING", "measuring"))
    assert not predict(frontend)
    assert frontend.catalogue.find_model("sum").version == "1"


def test_a_request_for_an_unavailable_model_says_why() -> None:
    frontend = connected_frontend()
    announce(frontend, ModelState(unread(), "UNAVAILABLE", "model.toml: slo: got 3"), a_state(a_spec("one")))
    expected = (Status.UNKNOWN_MODEL, "model 'sum/1' is unavailable: model.toml: slo: got 3")
    (answer,) = predict(frontend)
    assert (Status(answer.status), answer.reason) == expected
    for version, reason in (("1", expected[1]), ("2", "model: got 'sum' version '2', which is not served")):
        with pytest.raises(UnknownModel) as caught:
            frontend.catalogue.find_model("sum", version)
        assert caught.value.reason == reason


def test_the_newest_version_says_why_no_version_is_available() -> None:
    frontend = connected_frontend()
    announce(frontend, *(ModelState(unread(version=v), "UNAVAILABLE", f"fault {v}") for v in ("9", "10")))
    (answer,) = predict(frontend)
    assert answer.reason == "model 'sum/10' is unavailable: fault 10"


def test_an_application_does_without_a_model_that_was_never_read() -> None:
    frontend = connected_frontend(Application("app", ("bad", "sum"), slo_ms=40))
    announce(frontend, ModelState(unread("bad"), "UNAVAILABLE", "no such file"), a_state())
    assert not predict(frontend, "", application="app")


def test_an_application_of_unavailable_models_says_why() -> None:
    frontend = connected_frontend(Application("app", ("sum",), slo_ms=40))
    announce(frontend, ModelState(unread(), "UNAVAILABLE", "no such file"))
    (answer,) = predict(frontend, "", application="app")
    assert (Status(answer.status), answer.reason) == (
        Status.UNKNOWN_MODEL,
        "model 'sum/1' is unavailable: no such file",
    )


def test_an_application_whose_models_are_loading_is_refused() -> None:
    frontend = connected_frontend(Application("app", ("sum",), slo_ms=40))
    announce(frontend, ModelState(unread(), "LOADING", "measuring"))
    (answer,) = predict(frontend, "", application="app")
    assert Status(answer.status) == Status.REFUSED


def test_a_frontend_is_ready_once_its_models_are_settled() -> None:
    frontend = starting_frontend()
    assert not frontend.is_ready()
    announce(frontend, incomplete="no worker has registered")
    assert not frontend.is_ready()
    announce(frontend, a_state(), ModelState(unread("slow"), "LOADING", "measuring"))
    assert not frontend.is_ready()
    announce(frontend, a_state(), ModelState(unread("slow"), "UNAVAILABLE", "got no result within 120 s"))
    assert frontend.is_ready()
    announce(frontend, a_state(state="LOADING"), ModelState(unread("new"), "LOADING", "measuring"))
    assert frontend.is_ready(), "a load or a restart does not take the others away"


def test_a_frontend_does_not_wait_for_ever_for_workers_or_models() -> None:
    frontend = starting_frontend(ready_wait_ns=s(7))
    announce(frontend, a_state(), now_ns=s(1), incomplete="1 of 2 workers have registered")
    assert (frontend.wakeup_ns() or NEVER_NS) <= s(8)
    frontend.tick(s(8) - 1)
    assert not frontend.is_ready()
    frontend.tick(s(8))
    assert frontend.is_ready()


def test_a_frontend_that_does_not_wait_is_ready_when_models_are_announced() -> None:
    frontend = starting_frontend(ready_wait_ns=0)
    assert not frontend.is_ready()
    announce(frontend, ModelState(unread(), "LOADING", "measuring"), incomplete="1 of 2 workers have registered")
    assert frontend.is_ready()


def test_a_pipeline_whose_driver_has_failed_does_not_delay_readiness() -> None:
    frontend = starting_frontend()
    pipeline = ModelSpec("p", "1", "pipeline", a_spec().inputs, a_spec().outputs)
    frontend.handle(0, SELECTOR, Models(0, (ModelState(pipeline, "LOADING"),)), ())
    announce(frontend, a_state())
    assert not frontend.is_ready()
    frontend.handle(0, SELECTOR, Models(0, (ModelState(pipeline, "LOADING", "its driver is restarted"),)), ())
    frontend.tick(0)
    assert frontend.is_ready()


def test_a_selector_refuses_what_is_loading() -> None:
    selector = Selector(SELECTOR, SelectorSettings(store="memory"), random.Random(1))
    models = selector.models
    selector.handle(
        0, CONTROLLER, Models(0, (ModelState(unread("a"), "LOADING", "measuring"), a_state(a_spec("b")))), ()
    )
    assert models.find_callable("a") is None
    for name in ("a", "a/1"):
        status, reason = models.explain_missing(name)
        assert (status, "measuring" in reason) == (Status.REFUSED, True)
    assert models.explain_missing("c")[0] == Status.UNKNOWN_MODEL
    selector.handle(0, CONTROLLER, Models(0, (ModelState(a_spec("a"), "LOADING", "reading"),)), ())
    assert models.find_callable("a") == a_spec("a")


def test_the_sdk_asks_again_for_the_signature_of_a_model_that_is_loading() -> None:
    talk = Talk().welcomed()
    sink = talk.predict()
    ((question, _),) = talk.sent()
    unread_echo = ModelSpec(ECHO.name, ECHO.version, "", (), ())
    talk.get(Models(question.id, (ModelState(unread_echo, "LOADING", "worker/0: measuring"),)))
    assert not sink.done()
    assert not talk.sent()


def test_a_profiler_keeps_what_it_measured_of_a_model_that_is_loading() -> None:
    profiler = a_profiler()
    run_sample(profiler, 0, ms(3))
    measured = list(profiler.measurements.model_keys())
    assert measured == ["sum/1"]
    profiler.handle(0, CONTROLLER, Models(0, (ModelState(unread(), "LOADING", "measuring"),)), ())
    profiler.tick(0)
    assert list(profiler.measurements.model_keys()) == measured
    profiler.handle(0, CONTROLLER, Models(0, (a_state(a_spec(batch_sizes=(1,))),)), ())
    profiler.tick(0)
    assert list(profiler.measurements.model_keys()) == measured
    profiler.check()


def test_a_selector_says_why_a_model_is_unavailable() -> None:
    selector = Selector(SELECTOR, SelectorSettings(store="memory"), random.Random(1))
    states = (ModelState(unread("a"), "UNAVAILABLE", "no such file"), a_state(a_spec("b")))
    selector.handle(0, CONTROLLER, Models(0, states), ())
    for name in ("a", "a/1"):
        expected = (Status.UNKNOWN_MODEL, "model 'a/1' is unavailable: no such file")
        assert selector.models.explain_missing(name) == expected
