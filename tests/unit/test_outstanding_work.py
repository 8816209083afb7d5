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


@given(steps)
def test_outstanding_work_is_the_sum_over_lanes(steps: list[tuple[str, int, int]]) -> None:
    outstanding = OutstandingWork()
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
        wanted_ns = sum(_left_ns(lane, now_ns) for lane in lanes)
        assert outstanding.total_ns(now_ns) == outstanding.total_ns(now_ns, lanes) == wanted_ns


def _action(number: int, start_ns: int, takes_ns: int) -> Any:
    return SimpleNamespace(
        id=number, sent_ns=0, start_ns=start_ns, end_ns=start_ns + takes_ns, expected_ns=takes_ns, typical_ns=takes_ns
    )


def _left_ns(lane: Lane, now_ns: int) -> int:
    """Return the remaining work: the first action ends as predicted, 1 ns from now at the earliest."""
    if not (actions := list(lane.pending.values())):
        return 0
    first, *others = actions
    return max(1, first.start_ns + first.typical_ns - now_ns) + sum(one.typical_ns for one in others)
