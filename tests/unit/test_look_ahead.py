"""How far ahead shares get batches: by what the network takes, or by all that Results waited for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from horologe_common.clock import ms, s
from horologe_controller.core.cluster.lane import MessageLatency, look_ahead
from horologe_controller.settings import ControllerSettings

NOW_NS = s(10)


def test_a_batch_that_may_grow_goes_ahead_by_the_time_of_the_network_not_of_a_busy_process() -> None:
    """Two Results in ten come as fast as the network allows. The others wait for the processor."""
    latency = MessageLatency(return_window=10)
    for waited_ns in (*[ms(1) // 2] * 2, *[ms(1)] * 8):
        action: Any = SimpleNamespace(promised_ns=NOW_NS, expected_ns=0, sent_ns=0)
        latency.observe(NOW_NS, action, NOW_NS - waited_ns, NOW_NS - waited_ns)
    ahead = look_ahead(NOW_NS, latency, ControllerSettings(), lead_ns=ms(1) // 10, just_in_time=True)
    assert latency.returns.high_quantile(NOW_NS) == ms(1)
    assert ahead.return_until_ns == NOW_NS + ms(1) // 2
    assert ahead.more_until_ns == NOW_NS + 3 * ms(1)
