"""Messages to the tuner with values out of range, from wrong senders, and peers that never answer."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from harness.builders import a_spec, a_state
from harness.forged_messages import SENDERS, check_sendable, forged_messages
from horologe_common.clock import ms, s
from horologe_common.core.protocol import PeerConnected, PeerDisconnected
from horologe_common.wire import (
    DeviceState,
    Events,
    ModelEvents,
    Models,
    PipelineArrivals,
    Tune,
)
from horologe_planning.plan import encode_plans
from horologe_tuner.core.tuner import Tuner
from horologe_tuner.core.worker_scaling import Scaled
from horologe_tuner.settings import TunerSettings
from tuner.tuner_bench import CONTROLLER, FRONTEND, PLAN
from tuner.tuner_state import STATE

BINS = ((0, 3), (2, 5))
DEVICES = (DeviceState("worker/chat.v100-1.400#1", 0, "v100", ("chat/1",), ("chat/1",), 40.0, "v100-1"),)
MESSAGES: tuple[tuple[str, Any], ...] = (
    (
        CONTROLLER,
        Events(
            5, ms(100), ms(10),
            (ModelEvents("classify/1", BINS, 4, 1, ((3, 2),), 1), ModelEvents("chat/1", BINS, 4, 1, ((40, 9),), 1)),
            DEVICES, 1, (PipelineArrivals("video", BINS),),
        ),
    ),
    (CONTROLLER, Models(0, (a_state(a_spec("classify")),))),
    (FRONTEND, Tune(7, "apply", encode_plans((PLAN,)), False)),
    (FRONTEND, Tune(7, "withdraw", b"video")),
    (FRONTEND, Tune(7, "arrivals", b"video")),
    (FRONTEND, Tune(7, "status")),
)  # fmt: skip


def a_tuner() -> Tuner:
    """Return a tuner with three plans, connected and with a few events."""
    tuner = Tuner("tuner/0#1", TunerSettings(scaler="process"))
    tuner.restore(s(1000), STATE)
    tuner.handle(s(1000), CONTROLLER, PeerConnected(CONTROLLER), ())
    serve(tuner, s(1000), 1)
    return tuner


def serve(tuner: Tuner, now_ns: int, number: int, count: int = 3) -> None:
    """Deliver events, and check that the tuner answers and that what it sends can be encoded."""
    for step in range(count):
        events = Events(number + step, ms(100), ms(10), (ModelEvents("classify/1", BINS),), DEVICES)
        tuner.handle(now_ns + ms(100) * (step + 1), CONTROLLER, events, ())
        tuner.tick(now_ns + ms(100) * (step + 1))
    tuner.refresh_stats()
    tuner.check()
    check_sendable(tuner)
    tuner.out.clear()
    tuner.handle(now_ns + s(1), FRONTEND, Tune(9, "status"), ())
    tuner.tick(now_ns + s(1))
    check_sendable(tuner)
    assert [out.message.status for out in tuner.out if out.to == FRONTEND] == [0]
    tuner.out.clear()


@pytest.mark.parametrize(("sender", "message"), MESSAGES, ids=lambda value: type(value).__name__)
def test_no_value_of_a_message_is_a_fault(sender: str, message: Any) -> None:
    for number, (name, forged, buffers) in enumerate(forged_messages(message)):
        if not number % 40:
            tuner, at_ns, events = a_tuner(), s(1002), 10
        if getattr(forged, "number", 0) == 5:
            forged = msgspec.structs.replace(forged, number=events - 1)
        try:
            tuner.handle(at_ns, sender, forged, buffers)
            tuner.tick(at_ns)
            serve(tuner, at_ns, events)
        except Exception as error:
            raise AssertionError(f"{name}: {forged}"[:2000]) from error
        at_ns, events = at_ns + s(2), events + 10


@pytest.mark.parametrize("sender", SENDERS)
def test_no_sender_of_a_message_is_a_fault(sender: str) -> None:
    for right, message in MESSAGES:
        tuner = a_tuner()
        tuner.handle(s(1002), sender, message, ())
        if sender != right:
            assert not [out for out in tuner.out if out.to not in (tuner.store, tuner.journal)]
            assert len(tuner.plans.plans) == 3
        tuner.out.clear()
        serve(tuner, s(1002), 10)


def test_arrivals_that_are_not_possible_are_counted_and_ignored() -> None:
    tuner = a_tuner()
    before = tuner.plans.plans["video"].state.replicas
    for number, count in enumerate((-5, 1 << 62, 1 << 40), 10):
        tuner.handle(
            s(1002), CONTROLLER, Events(number, ms(100), ms(10), (ModelEvents("classify/1", ((0, count),)),)), ()
        )
    assert tuner.stats.values["horologe_invalid_messages_total", "Events"] == 3
    assert tuner.plans.plans["video"].state.replicas == before
    serve(tuner, s(1002), 20)


def test_a_scaler_that_answers_nonsense() -> None:
    tuner = a_tuner()
    for scaled in (Scaled({"v100": -1}), Scaled({"": 1 << 62}, "x" * 100_000), Scaled({}, "", ("other",) * 1000)):
        tuner.handle(s(1002), tuner.scaler, scaled, ())
        serve(tuner, s(1002), 10)


def test_silent_peers_are_noticed_and_nothing_waits_for_them() -> None:
    """Neither the controller nor the scaler answers."""
    tuner = a_tuner()
    for second in range(1003, 1100):
        tuner.tick(s(second))
        assert (at_ns := tuner.wakeup_ns()) is None or at_ns > s(second)
    assert "blind" in str(tuner.out)
    tuner.out.clear()
    tuner.handle(s(1100), CONTROLLER, PeerDisconnected(CONTROLLER), ())
    tuner.handle(s(1100), "controller/0#2", PeerConnected("controller/0#2"), ())
    tuner.handle(s(1101), FRONTEND, Tune(9, "status"), ())
    assert len([out for out in tuner.out if out.to == FRONTEND]) == 1
