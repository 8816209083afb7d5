"""Results of actions that met a stall: neither times of models nor latencies are learned from them."""

from __future__ import annotations

import pytest

from controller.controller_builders import MODEL, WORKER, a_controller, submit, tick
from harness.builders import sent
from horologe_common.clock import ms
from horologe_common.distribution import Distribution
from horologe_common.status import Status
from horologe_common.wire import Infer, Ping, Pong, Result
from horologe_controller.core.cluster.pings import STALL_NS, Stalls
from horologe_controller.core.controller import Controller
from horologe_controller.core.runtime_distributions import RuntimeDistributions, SoloDistribution

STALL_MS = 800


def answer_pings(controller: Controller, now_ns: int) -> None:
    for ping in sent(controller, Ping, WORKER):
        controller.handle(now_ns, WORKER, Pong(ping.sent_ns, now_ns), ())


def run_until(controller: Controller, from_ms: int, to_ms: int, *, answers: bool = True) -> None:
    """Tick every 50 ms, and answer the pings at once."""
    for at_ms in range(from_ms, to_ms, 50):
        tick(controller, ms(at_ms))
        if answers:
            answer_pings(controller, ms(at_ms))


def an_exec_that_met_a_stall(controller: Controller, first: str) -> None:
    """Run an EXEC of 2 ms whose worker stalls from 500 to 1300 ms. Its Result or the Pongs come `first`."""
    run_until(controller, 0, 500)
    submit(controller, 1, now_ns=ms(499), budget_ms=3000)
    (infer,) = sent(controller, Infer)
    run_until(controller, 500, 500 + STALL_MS, answers=False)
    back_ns = ms(500 + STALL_MS)
    if first == "pongs":
        answer_pings(controller, back_ns)
    controller.handle(back_ns, WORKER, Result(infer.action_id, Status.OK, ms(499), back_ns), ())
    answer_pings(controller, back_ns)
    tick(controller, back_ns)


@pytest.mark.parametrize("first", ["result", "pongs"])
def test_an_exec_that_met_a_stall_of_its_worker_does_not_count(first: str) -> None:
    controller = a_controller()
    an_exec_that_met_a_stall(controller, first)
    (share,) = controller.cluster.shares()
    now_ns = ms(500 + STALL_MS)
    assert share.predict(now_ns, MODEL, 1) == ms(2)
    assert share.pace.high_quantile(now_ns) is None
    assert controller.cluster.latency.dispatch_ns == 0
    submit(controller, 2, now_ns=now_ns, budget_ms=10)
    assert sent(controller, Infer), "the next request is run at once"


def test_a_stall_says_nothing_about_a_dynamic_model_either() -> None:
    controller = a_controller()
    solo = Distribution.from_samples([ms(2), ms(2.1), ms(2.2)])
    controller.cluster.distributions[MODEL] = RuntimeDistributions(ms(1), [SoloDistribution("", 0, solo)])
    an_exec_that_met_a_stall(controller, "pongs")
    (share,) = controller.cluster.shares()
    assert share.dynamic_pace.at(ms(500 + STALL_MS)) == 1.0


def test_what_arrives_after_a_stall_of_the_controller_says_nothing_about_the_way() -> None:
    controller = a_controller()
    run_until(controller, 0, 500)
    submit(controller, 1, now_ns=ms(450), budget_ms=3000)
    (infer,) = sent(controller, Infer)
    back_ns = ms(450 + STALL_MS)
    controller.handle(back_ns, WORKER, Result(infer.action_id, Status.OK, ms(451), ms(453)), ())
    tick(controller, back_ns)
    (share,) = controller.cluster.shares()
    assert controller.cluster.latency.returns.high_quantile(back_ns) is None
    assert share.predict(back_ns, MODEL, 1) == ms(2)


def has_stalled(stalls: Stalls, now_ns: int, since_ns: int) -> bool:
    return now_ns > stalls.visible_ns or since_ns < stalls.ended_ns


def test_a_slow_way_is_no_stall() -> None:
    stalls = Stalls()
    stalls.on_ping(0)
    stalls.on_pong(ms(300), 0, ms(300))
    assert not has_stalled(stalls, ms(300), 0)


def test_a_peer_that_never_answers_pings_has_no_stalls() -> None:
    stalls = Stalls()
    stalls.on_ping(0)
    assert not has_stalled(stalls, 10 * STALL_NS, 0)


def test_only_actions_that_were_sent_before_its_end_meet_a_stall() -> None:
    stalls = Stalls()
    stalls.on_ping(ms(1))
    stalls.on_pong(ms(500), ms(1), ms(1))
    assert has_stalled(stalls, ms(501), ms(499))
    assert not has_stalled(stalls, ms(501), ms(500))
