"""How far ahead shares get batches: by what the network takes, or by all that Results wait for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from horologe_common.clock import ms, s
from horologe_controller.core.cluster.lane import LookAhead, MessageLatency, look_ahead
from horologe_controller.schedulers.horologe import Horologe
from horologe_controller.settings import ControllerSettings

NOW_NS = s(10)


@pytest.fixture
def ahead() -> LookAhead:
    """Two Results in ten come as fast as the network allows. The others wait in a busy process."""
    latency = MessageLatency(return_window=10)
    for waited_ns in (*[ms(1) // 2] * 2, *[ms(1)] * 8):
        action: Any = SimpleNamespace(promised_ns=NOW_NS, expected_ns=0, sent_ns=0)
        latency.observe(NOW_NS, action, NOW_NS - waited_ns, NOW_NS - waited_ns)
    return look_ahead(NOW_NS, latency, ControllerSettings(), lead_ns=ms(1) // 10, just_in_time=True)


def test_the_look_ahead_tells_the_network_from_waits(ahead: LookAhead) -> None:
    assert ahead.network_until_ns == NOW_NS + ms(1) // 2
    assert ahead.return_until_ns == NOW_NS + ms(1)
    assert ahead.more_until_ns == NOW_NS + 3 * ms(1)


@pytest.mark.parametrize(
    ("size", "gap_ns", "until_ns"),
    [(8, ms(0.1), ms(0.5)), (8, ms(0.6), ms(1)), (16, ms(0.1), ms(3))],
    ids=["a batch that will grow", "one that will not", "a full one"],
)
def test_the_default_goes_ahead_by_the_network_only_if_requests_come_while_results_wait(
    ahead: LookAhead, size: int, gap_ns: int, until_ns: int
) -> None:
    policy = Horologe(ControllerSettings())
    request: Any = SimpleNamespace(model="m/1", admitted=False, best_effort=False)
    for number in range(200):
        request.arrival_ns = number * gap_ns
        policy.traffic.record_arrivals([request])
    queue = SimpleNamespace(model="m/1", spec=SimpleNamespace(max_batch=16))
    strategy: Any = SimpleNamespace(size=size, queue=queue)
    assert policy.go_ahead_until_ns(ahead, strategy) == NOW_NS + until_ns
