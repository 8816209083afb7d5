"""Actions and refusals for consoles, recorded while somebody watches."""

from __future__ import annotations

from controller.controller_builders import FRONTEND, SELECTOR
from controller.plan_bench import Bench
from harness.builders import sent
from horologe_common.clock import ms, s
from horologe_common.status import Status
from horologe_common.wire import Activity, Result, Submit, Watch
from horologe_controller.core import activity_recorder


def watch(bench: Bench, after: int = 0, limit: int = 300) -> Activity:
    bench.controller.handle(bench.now_ns, FRONTEND, Watch(7, after, limit), ())
    (activity,) = sent(bench.controller, Activity, FRONTEND)
    assert activity.id == 7
    return activity


def run_batches(bench: Bench, count: int) -> None:
    for _ in range(count):
        bench.submit()
        bench.finish_all()


def test_nothing_is_recorded_before_somebody_watches() -> None:
    bench = Bench(("cpu",))
    run_batches(bench, 3)
    assert watch(bench).number == 0
    run_batches(bench, 2)
    activity = watch(bench)
    assert [action.kind for action in activity.actions] == ["infer", "infer"]
    assert activity.number == 2


def test_actions_have_planned_and_actual_times() -> None:
    bench = Bench(("cpu",))
    watch(bench)
    bench.now_ns = ms(100)
    bench.submit(count=2)
    ((worker, infer),) = bench.infers
    bench.infers.clear()
    bench.now_ns = ms(107)
    bench.controller.handle(bench.now_ns, worker, Result(infer.action_id, Status.OK, ms(101), ms(106)), ())
    (action,) = watch(bench).actions
    assert (action.worker, action.share, action.model, action.requests) == (worker, 0, "sum/1", 2)
    assert (action.planned_begin_ns, action.planned_end_ns) == (ms(100), ms(100) + infer.expected_ns)
    assert (action.begin_ns, action.end_ns, action.status, action.late) == (ms(101), ms(106), 0, 0)


def test_an_answer_holds_what_has_ended_since_the_last() -> None:
    bench = Bench(("cpu",))
    watch(bench)
    run_batches(bench, 3)
    first = watch(bench)
    assert (len(first.actions), first.number) == (3, 3)
    run_batches(bench, 2)
    assert len(watch(bench, first.number).actions) == 2
    assert len(watch(bench, first.number).actions) == 2, "consoles do not take the actions of one another"
    assert len(watch(bench, 1000).actions) == 5, "the number is one of an earlier controller"


def test_recording_ends_without_a_watch() -> None:
    bench = Bench(("cpu",))
    watch(bench)
    run_batches(bench, 2)
    bench.now_ns += s(6)
    bench.controller.tick(bench.now_ns)
    run_batches(bench, 1)
    assert watch(bench).actions == ()


def test_refusals_are_counted_by_model_and_reason() -> None:
    bench = Bench(("cpu",))
    watch(bench)
    bench.now_ns = ms(103)
    for number in range(4):
        bench.controller.handle(bench.now_ns, SELECTOR, Submit(number, "sum/1", ms(1), 1, FRONTEND, number), ())
    bench.controller.tick(bench.now_ns)
    (refusal,) = watch(bench).refusals
    assert (refusal.at_ns, refusal.model, refusal.reason, refusal.count) == (ms(100), "sum/1", "execution_too_long", 4)
    assert refusal.missing_ns > 0


def test_unusual_actions_are_kept_when_there_are_too_many() -> None:
    bench = Bench(("cpu",))
    watch(bench)
    run_batches(bench, 10)
    bench.submit()
    ((worker, infer),) = bench.infers
    bench.infers.clear()
    bench.controller.handle(
        bench.now_ns, worker, Result(infer.action_id, Status.FAILED, bench.now_ns, bench.now_ns), ()
    )
    run_batches(bench, 10)
    activity = watch(bench, limit=5)
    assert [action.status for action in activity.actions].count(int(Status.FAILED)) == 1
    assert len(activity.actions) == 5
    assert activity.missing == 16
    assert [action.end_ns for action in activity.actions] == sorted(action.end_ns for action in activity.actions)
    assert sum(share.actions for share in activity.shares) == 21


def test_the_memory_is_bounded() -> None:
    bench = Bench(("cpu",))
    watch(bench)
    recorder = bench.controller._activity
    run_batches(bench, 1)
    entry = recorder._entries[0]
    for _ in range(activity_recorder.ENTRIES + 10):
        recorder.record_action(*entry)
    activity = watch(bench, limit=10)
    assert len(activity.actions) == 10
    assert activity.missing == activity_recorder.ENTRIES + 1
