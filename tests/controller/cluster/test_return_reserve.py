"""What is kept of a budget for the return of the answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horologe_common.clock import ms, us
from horologe_controller.core.cluster.lane import MessageLatency


@pytest.mark.parametrize(
    ("budget_ms", "least_ms", "reserved_ms"),
    [
        pytest.param(100, 10, 1.5, id="time to spare: return latency and margin"),
        pytest.param(14.5, 10, 1, id="4 ms to wait: half of the margin"),
        pytest.param(10.5, 10, 0.5, id="no time to wait: no margin"),
        pytest.param(9, 10, 0.5, id="too late anyway"),
        pytest.param(4, 0, 0.9375, id="nothing known of the model"),
        pytest.param(1, 0, 0.25, id="a quarter at most"),
    ],
)
def test_the_margin_shrinks_with_the_time_to_wait(budget_ms: float, least_ms: float, reserved_ms: float) -> None:
    latency = MessageLatency()
    assert latency.reserved_ns(ms(budget_ms), ms(least_ms), us(500), ms(1)) == ms(reserved_ms)


times = st.integers(0, ms(100))


@given(times, times, times, times)
def test_a_request_that_could_be_in_time_without_a_margin_still_can(
    budget_ns: int, least_ns: int, return_ns: int, margin_ns: int
) -> None:
    reserved_ns = MessageLatency().reserved_ns(budget_ns, least_ns, return_ns, margin_ns)
    assert 0 <= reserved_ns <= min(return_ns + margin_ns, budget_ns / 4)
    if least_ns + return_ns <= budget_ns:
        assert least_ns + reserved_ns <= budget_ns
