"""A lane returns every operation once: inside its window, as expired, or as removed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from horologe_common.core.instruments import Stats
from horologe_common.status import Status
from horologe_gpu_worker.core.lanes import Finished, LaneMetrics, LaneOperation, OperationQueue


def an_operation(action_id: int, earliest_ns: int = 0, latest_ns: int = 100) -> LaneOperation:
    return LaneOperation(action_id, 0, "exec", "m/1", earliest_ns=earliest_ns, latest_ns=latest_ns)


def test_the_earliest_window_goes_first_and_arrival_decides_between_equals() -> None:
    lane = OperationQueue()
    for action_id, earliest_ns in ((1, 20), (2, 10), (3, 10)):
        lane.push(an_operation(action_id, earliest_ns))
    assert lane.pop_startable(4) == 6
    order = [lane.pop_startable(50) for _ in range(3)]
    assert [operation.action_id for operation in order if isinstance(operation, LaneOperation)] == [2, 3, 1]
    assert lane.pop_startable(50) is None


def test_a_closed_window_is_never_run() -> None:
    lane = OperationQueue()
    lane.push(an_operation(1, 0, 10))
    lane.push(an_operation(2, 0, 30))
    assert lane.pop_startable(11) == 0
    assert lane.pop_expired(10) is None
    late = lane.pop_expired(11)
    assert late is not None
    assert late.action_id == 1
    assert lane.pop_expired(11) is None
    following = lane.pop_startable(11)
    assert isinstance(following, LaneOperation)
    assert following.action_id == 2


def test_failures_of_a_model_are_counted_by_cause() -> None:
    stats = Stats()
    metrics = LaneMetrics(stats)
    assert stats.values["horologe_lane_operations_total", "exec", "FAILED"] == 0
    metrics.record_finished(Finished(1, "exec", Status.FAILED, 0, 5, failure=("a/1", "hang")))
    metrics.record_finished(Finished(2, "exec", Status.OK, 0, 5))
    assert stats.values["horologe_lane_operations_total", "exec", "FAILED"] == 1
    counts = {key: value for key, value in stats.values.items() if key[0] == "horologe_model_failures_total"}
    assert {key[3]: value for key, value in counts.items() if value} == {"hang": 1}
    assert {key[1:3] for key in counts} == {("a", "1")}


windows = st.tuples(st.integers(0, 50), st.integers(-5, 30))
steps = st.lists(st.one_of(windows, st.integers(0, 20), st.tuples(st.integers(0, 30))), max_size=60)


@given(steps)
def test_every_operation_leaves_once_and_only_inside_its_window(script: list[tuple[int, ...] | int]) -> None:
    lane, now_ns = OperationQueue(), 0
    pushed: dict[int, LaneOperation] = {}
    left: list[int] = []
    for step in script:
        if isinstance(step, int):
            now_ns += step
        elif len(step) == 1:
            if gone := lane.remove_operation(step[0]):
                left.append(gone.action_id)
        else:
            operation = an_operation(len(pushed), step[0], step[0] + step[1])
            pushed[operation.action_id] = operation
            lane.push(operation)
        while late := lane.pop_expired(now_ns):
            assert now_ns > late.latest_ns
            left.append(late.action_id)
        startable = lane.pop_startable(now_ns)
        if isinstance(startable, LaneOperation):
            assert startable.earliest_ns <= now_ns <= startable.latest_ns
            left.append(startable.action_id)
        elif startable is None:
            assert len(lane) == 0
        else:
            assert startable > 0
        lane.check()
        assert len(lane) == len(pushed) - len(left)
    assert len(set(left)) == len(left)
