"""The incremental sum of outstanding work equals the sum over all lanes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from horologe_controller.core.cluster.lane import Lane, OutstandingWork

steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 2), st.integers(0, 20)),
        st.tuples(st.just("end"), st.integers(0, 2), st.integers(0, 30)),
        st.tuples(st.just("clear"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("ask"), st.just(0), st.integers(0, 9)),
    ),
    max_size=150,
)


@given(steps, st.integers(0, 25))
def test_outstanding_work_is_the_sum_over_lanes(steps: list[tuple[str, int, int]], return_ns: int) -> None:
    outstanding = OutstandingWork()
    outstanding.latency.return_ns = return_ns
    lanes = [Lane(outstanding, index) for index in range(3)]
    now_ns = 1000
    for number, (verb, place, value) in enumerate(steps):
        lane = lanes[place]
        now_ns += 1
        if verb == "add":
            lane.append_action(_action(number, max(now_ns, lane.free_at(now_ns)), value))
        elif verb == "end" and lane.pending:
            lane.finish_action(next(iter(lane.pending.values())), now_ns - value)
        elif verb == "clear":
            lane.clear()
        now_ns += value if verb == "ask" else 0
        wanted_ns = sum(_left_ns(lane, now_ns, return_ns) for lane in lanes)
        assert outstanding.total_ns(now_ns) == outstanding.total_ns(now_ns, lanes) == wanted_ns


def _action(number: int, start_ns: int, takes_ns: int) -> Any:
    return SimpleNamespace(
        id=number, sent_ns=0, start_ns=start_ns, end_ns=start_ns + takes_ns, expected_ns=takes_ns, typical_ns=takes_ns
    )


def _left_ns(lane: Lane, now_ns: int, return_ns: int) -> int:
    """Return the remaining work: the first action ends as predicted, or later than a return latency ago."""
    if not (actions := list(lane.pending.values())):
        return 0
    first, *others = actions
    rest_ns = sum(one.typical_ns for one in others)
    return max(1 + max(0, rest_ns - return_ns), first.start_ns + first.typical_ns + rest_ns - now_ns)


def test_executions_whose_results_are_on_their_way_do_not_keep_a_lane_busy() -> None:
    outstanding = OutstandingWork()
    lane = Lane(outstanding)
    for number in range(5):
        lane.append_action(_action(number, 1000 + 10 * number, 10))
    assert lane.free_at(1040) == 1080, "the first has no Result yet, so the other four are still to come"
    outstanding.latency.return_ns = 30
    assert lane.free_at(1040) == 1050, "it may have ended as predicted"
    assert lane.free_at(1060) == 1070, "it ended later than 1030"
