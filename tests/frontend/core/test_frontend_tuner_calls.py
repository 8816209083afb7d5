"""Calls of operators to the tuner: forwarded, refused without a management key, and answered in any case."""

from __future__ import annotations

from frontend.frontend_builders import CLIENT, connected_frontend
from harness.builders import sent
from horologe_common.core.protocol import PeerConnected, PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import Tune, Tuning

TUNER, USER = "tuner/0#1", "user/bb"


def test_a_call_reaches_the_tuner_and_its_answer_the_client() -> None:
    frontend = connected_frontend()
    frontend.handle(0, TUNER, PeerConnected(TUNER), ())
    frontend.handle(0, CLIENT, Tune(7, "apply", b"{}", True), ())
    (call,) = sent(frontend, Tune, TUNER)
    assert (call.command, call.document, call.dry_run) == ("apply", b"{}", True)
    frontend.handle(0, TUNER, Tuning(call.id, b"[]"), ())
    assert sent(frontend, Tuning, CLIENT) == [Tuning(7, b"[]")]


def test_without_a_tuner_a_call_is_lost() -> None:
    frontend = connected_frontend()
    frontend.handle(0, CLIENT, Tune(7, "status"), ())
    (answer,) = sent(frontend, Tuning, CLIENT)
    assert (answer.id, answer.status, answer.reason) == (7, Status.LOST, "the tuner is not connected")
    frontend.handle(0, TUNER, PeerConnected(TUNER), ())
    frontend.handle(0, CLIENT, Tune(8, "status"), ())
    frontend.handle(0, TUNER, PeerDisconnected(TUNER), ())
    (answer,) = sent(frontend, Tuning, CLIENT)
    assert (answer.id, answer.reason) == (8, "the tuner disconnected")
    frontend.check()


def test_users_may_read_the_status_only() -> None:
    frontend = connected_frontend()
    frontend.handle(0, TUNER, PeerConnected(TUNER), ())
    for number, command in enumerate(("apply", "withdraw", "status")):
        frontend.handle(0, USER, Tune(number, command), ())  # type: ignore[arg-type]
    assert [answer.status for answer in sent(frontend, Tuning, USER)] == [Status.FORBIDDEN] * 2
    assert [call.command for call in sent(frontend, Tune, TUNER)] == ["status"]
