"""Calls of clients that the frontend forwards, and messages that it ignores."""

from __future__ import annotations

from frontend.frontend_core_builders import CLIENT, CONTROLLER, WORKER, a_frontend, send_predict
from harness.builders import a_predict, a_state, sent
from horologe_common.clock import s
from horologe_common.core.protocol import PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import (
    Admit,
    Answer,
    Describe,
    Description,
    Dispatch,
    ModelInfo,
    Models,
    Query,
    Release,
)


def test_model_info_and_describe() -> None:
    frontend = a_frontend()
    frontend.handle(0, CLIENT, ModelInfo(3), ())
    assert sent(frontend, Models, CLIENT)[0].models == (a_state(),)
    frontend.handle(0, CLIENT, Describe(4), ())
    (asked,) = sent(frontend, Describe, CONTROLLER)
    frontend.handle(0, CONTROLLER, Description(asked.id, (), "edf", 0), ())
    assert sent(frontend, Description, CLIENT)[0].id == 4


def test_call_without_a_controller_is_lost() -> None:
    frontend = a_frontend()
    frontend.handle(0, CONTROLLER, PeerDisconnected(CONTROLLER), ())
    assert not frontend.is_ready()
    frontend.handle(0, CLIENT, Admit(4, "sum", "", True), ())
    assert sent(frontend, Models, CLIENT)[0].status == Status.LOST


def test_a_load_may_take_longer_than_other_calls() -> None:
    frontend = a_frontend(load_timeout_ns=s(300))
    frontend.handle(0, CLIENT, Admit(1, "sum", "", True), ())
    frontend.handle(0, CLIENT, Describe(2), ())
    frontend.tick(s(60))
    assert sent(frontend, Description, CLIENT)
    assert not sent(frontend, Models, CLIENT)
    assert frontend.wakeup_ns() == s(300)
    frontend.tick(s(300))
    assert [models.status for models in sent(frontend, Models, CLIENT)] == [Status.LOST]


def test_messages_of_services_are_ignored_from_clients() -> None:
    frontend = a_frontend()
    send_predict(frontend, a_predict(7))
    (query,) = sent(frontend, Query)
    for message in (Answer(query.id, 0), Release((query.id,)), Models(0, ()), Dispatch(1, WORKER, (query.id,))):
        frontend.handle(1, CLIENT, message, ())
    assert not frontend.out
    assert query.id in frontend.staging
