"""Profiler core: it runs samples alone, publishes its measurements, and affects no one when something fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import a_spec, a_state, a_tensor, sent, some_bytes
from horologe_common.clock import ms, s
from horologe_common.core.protocol import PeerConnected, PeerDisconnected
from horologe_common.models import ModelSpec
from horologe_common.recording.snapshot import restore, snapshot, strip_tensors
from horologe_common.status import Status
from horologe_common.wire import (
    Cancel,
    Dispatch,
    Distributions,
    Models,
    Outcome,
    Outputs,
    RowStatus,
    Sample,
    Ship,
    Submit,
)
from horologe_profiler.core.batch_fit import Point
from horologe_profiler.core.measurements import BatchTime, ProfilerState
from horologe_profiler.core.profiler import Profiler
from horologe_profiler.settings import ProfilerSettings

if TYPE_CHECKING:
    from collections.abc import Callable

FRONTEND, CONTROLLER, WORKER = "frontend/0#1", "controller/0#1", "worker/0#1"


def a_profiler(*specs: ModelSpec, **settings: Any) -> Profiler:
    """Return a profiler with a connected controller and one model. It compares no inputs unless `settings` say so."""
    defaults = {"busy_share": 0.5, "busy_burst_ns": 0, "comparison_interval_ns": 0}
    profiler = Profiler("profiler/0#1", ProfilerSettings(**(defaults | settings)))
    for address in (FRONTEND, CONTROLLER, WORKER):
        profiler.handle(0, address, PeerConnected(address), ())
    announce(profiler, *(specs or (a_spec(batch_sizes=(1,)),)))
    return profiler


def announce(profiler: Profiler, *specs: ModelSpec) -> None:
    profiler.handle(0, CONTROLLER, Models(0, tuple(a_state(spec) for spec in specs)), ())
    profiler.tick(0)


def sample(profiler: Profiler, now_ns: int = 0, rows: int = 1, length: int = 0, **fields: Any) -> None:
    message = Sample(fields.get("model", "sum/1"), (a_tensor(rows),), rows, length, fields.get("application", "chat"))
    profiler.handle(now_ns, FRONTEND, message, [fields.get("data", some_bytes(rows))])
    profiler.tick(now_ns)
    profiler.check()


def finish_run(profiler: Profiler, submit: Submit, now_ns: int, took_ns: int, status: int = Status.OK) -> None:
    rows = (RowStatus(submit.id, submit.rows, int(status)),)
    outputs = Outputs(1, rows, (), submit.model, submit.rows, now_ns - took_ns, now_ns)
    profiler.handle(now_ns, WORKER, outputs, ())
    profiler.tick(now_ns)
    profiler.check()


def run_sample(profiler: Profiler, now_ns: int, took_ns: int, **fields: Any) -> int:
    """Run one sample alone at once. Returns the time from which the next run may start."""
    sample(profiler, now_ns, **fields)
    (submit,) = sent(profiler, Submit)
    finish_run(profiler, submit, now_ns + took_ns, took_ns)
    return now_ns + 2 * took_ns


def published_distributions(profiler: Profiler, took_ns: int, count: int = 20, now_ns: int = 0) -> int:
    for _ in range(count):
        now_ns = run_sample(profiler, now_ns, took_ns)
    return now_ns


def test_a_sample_is_run_alone_without_a_deadline_of_anybodys() -> None:
    profiler = a_profiler()
    sample(profiler, length=90)
    (submit,) = sent(profiler, Submit, CONTROLLER)
    assert (submit.model, submit.rows, submit.holder) == ("sum/1", 1, profiler.address)
    assert (submit.best_effort, submit.solo, submit.length, submit.application) == (True, True, 90, "chat")
    profiler.handle(1, CONTROLLER, Dispatch(5, WORKER, (submit.input_id,)), ())
    (ship,) = sent(profiler, Ship, WORKER)
    assert [item.input_id for item in ship.items] == [submit.input_id]
    finish_run(profiler, submit, ms(3), ms(3))
    assert not profiler.staging.ids()


def test_of_many_rows_the_first_is_run() -> None:
    profiler = a_profiler()
    sample(profiler, rows=3, data=b"a" * 16 + b"b" * 32)
    (submit,) = sent(profiler, Submit)
    held = profiler.staging.inputs_of(submit.input_id)
    assert held is not None
    assert held[0] == (a_tensor(1),)
    assert held[1] == [b"a" * 16]


def test_what_was_learned_is_told_the_controller_and_kept() -> None:
    profiler = a_profiler()
    now_ns = published_distributions(profiler, ms(2), 6)
    sent(profiler, Distributions)
    profiler.tick(now_ns + s(3))
    (message,) = sent(profiler, Distributions, CONTROLLER)
    (part,) = message.histograms
    assert (message.model, part.application, part.length) == ("sum/1", "chat", 0)
    assert (part.edges_ns, part.counts) == ((ms(2), ms(2) + 1), (6,))
    kept = sent(profiler, ProfilerState, profiler.store)
    assert len(kept[-1].windows[0][2]) == 6
    assert profiler.wakeup_ns() is None


def test_it_is_told_seldom_and_only_when_changed() -> None:
    profiler = a_profiler(publish_interval_ns=s(5))
    published_distributions(profiler, ms(1), 20)
    assert len(sent(profiler, Distributions)) == 1
    profiler.tick(s(6))
    assert len(sent(profiler, Distributions)) == 1
    profiler.tick(s(12))
    assert sent(profiler, Distributions) == []


def test_a_new_controller_is_told_all_at_once() -> None:
    profiler = a_profiler()
    now_ns = published_distributions(profiler, ms(2))
    profiler.tick(now_ns + s(3))
    sent(profiler, Distributions)
    profiler.handle(now_ns, CONTROLLER, PeerDisconnected(CONTROLLER), ())
    profiler.handle(now_ns, "controller/0#2", PeerConnected("controller/0#2"), ())
    profiler.tick(now_ns)
    (message,) = sent(profiler, Distributions, "controller/0#2")
    assert sum(message.histograms[0].counts) == 20


def test_it_takes_no_more_than_its_share_of_a_device() -> None:
    profiler = a_profiler(busy_share=0.1)
    for _ in range(5):
        sample(profiler)
    (submit,) = sent(profiler, Submit)
    finish_run(profiler, submit, ms(10), ms(10))
    assert sent(profiler, Submit) == []
    assert profiler.wakeup_ns() == ms(100)
    profiler.tick(ms(100) - 1)
    assert sent(profiler, Submit) == []
    profiler.tick(ms(100))
    assert len(sent(profiler, Submit)) == 1


def test_at_first_more_is_run_at_once_and_in_the_long_run_no_more_than_the_share() -> None:
    profiler = a_profiler(busy_share=0.1, busy_burst_ns=ms(95), initial_runs=10**6)
    begun, now_ns = [], 0
    while now_ns < s(10):
        sample(profiler, now_ns)
        for submit in sent(profiler, Submit):
            begun.append(now_ns)
            finish_run(profiler, submit, now_ns + ms(10), ms(10))
        now_ns += ms(10)
    assert begun[:10] == [number * ms(10) for number in range(10)]
    assert ms(950) <= len(begun) * ms(10) <= ms(10_000) * 0.1 + ms(110)


def test_the_least_known_goes_first() -> None:
    profiler = a_profiler()
    now_ns = published_distributions(profiler, ms(1), 5)
    for length in (0, 0, 90, 0):
        sample(profiler, now_ns, length=length)
    (first,) = sent(profiler, Submit)
    finish_run(profiler, first, now_ns + ms(1), ms(1))
    profiler.tick(now_ns + ms(2))
    assert [submit.length for submit in sent(profiler, Submit)] == [90]


def test_what_is_known_well_is_run_seldom() -> None:
    profiler = a_profiler(initial_runs=10, rerun_interval_ns=s(30))
    now_ns = published_distributions(profiler, ms(2), 10)
    sample(profiler, now_ns)
    assert sent(profiler, Submit) == []
    run_sample(profiler, now_ns + s(30), ms(2))
    sample(profiler, now_ns + s(31))
    assert sent(profiler, Submit) == []


def test_another_application_and_other_lengths_are_not_known_by_that() -> None:
    profiler = a_profiler(initial_runs=10)
    now_ns = published_distributions(profiler, ms(2), 10)
    now_ns = run_sample(profiler, now_ns, ms(2), application="search")
    run_sample(profiler, now_ns, ms(2), length=40)


def test_a_row_is_also_run_in_batches_of_itself_as_far_as_they_are_short() -> None:
    profiler = a_profiler(a_spec(batch_sizes=(1, 2, 4, 8)), batch_time_max_ns=ms(20))
    sample(profiler, data=b"abcd" * 4)
    now_ns, sizes = 0, []
    while submits := sent(profiler, Submit):
        (submit,) = submits
        sizes.append(submit.rows)
        held = profiler.staging.inputs_of(submit.input_id)
        assert held is not None
        assert held[0][0].shape == (submit.rows, 4)
        assert held[1] == [b"abcd" * 4 * submit.rows]
        took_ns = ms(1) + ms(3) * submit.rows
        finish_run(profiler, submit, now_ns + took_ns, took_ns)
        now_ns += 2 * took_ns
        profiler.tick(now_ns)
    assert sizes == [1, 2, 4]
    published_distributions(profiler, ms(4), 5, now_ns)
    profiler.tick(s(60))
    assert sent(profiler, Distributions)[-1].base_ns == pytest.approx(ms(1), rel=1e-3)


def test_after_drift_batches_are_tried_anew() -> None:
    profiler = a_profiler(a_spec(batch_sizes=(1, 2)), initial_runs=100)
    sample(profiler)
    for _ in range(2):
        (submit,) = sent(profiler, Submit)
        finish_run(profiler, submit, ms(10), ms(5))
        profiler.tick(ms(20))
    now_ns = published_distributions(profiler, ms(5), 24, ms(30))
    now_ns = published_distributions(profiler, ms(15), 4, now_ns)
    sample(profiler, now_ns)
    (submit,) = sent(profiler, Submit)
    finish_run(profiler, submit, now_ns + ms(15), ms(15))
    profiler.tick(now_ns + ms(30))
    (again,) = sent(profiler, Submit)
    assert again.rows == 2


def test_without_a_controller_nothing_is_run_and_nothing_grows() -> None:
    profiler = a_profiler()
    sample(profiler)
    assert len(sent(profiler, Submit)) == 1
    profiler.handle(1, CONTROLLER, PeerDisconnected(CONTROLLER), ())
    profiler.tick(1)
    profiler.check()
    assert profiler.pending() == 0
    for _ in range(1000):
        sample(profiler, 2)
    assert sent(profiler, Submit) == []
    assert profiler.wakeup_ns() is None
    assert profiler.staging.held_bytes == 16 * 16
    profiler.handle(3, "controller/0#2", PeerConnected("controller/0#2"), ())
    profiler.tick(3)
    assert len(sent(profiler, Submit, "controller/0#2")) == 1


def test_a_run_that_never_comes_back_is_given_up_after_its_budget() -> None:
    profiler = a_profiler(budget_ns=s(5))
    sample(profiler)
    (submit,) = sent(profiler, Submit)
    assert submit.budget_ns == s(5)
    assert profiler.wakeup_ns() == s(6)
    profiler.tick(s(6))
    assert sent(profiler, Cancel, CONTROLLER) == [Cancel((submit.id,))]
    assert (profiler.pending(), profiler.staging.ids()) == (0, [])
    finish_run(profiler, submit, s(7), ms(1))
    assert len(profiler.measurements.fit_points("sum/1")) == 0


@pytest.mark.parametrize("status", [Status.REFUSED, Status.LOST, Status.UNKNOWN_MODEL, Status.FAILED])
def test_a_run_that_is_refused_is_forgotten(status: Status) -> None:
    profiler = a_profiler()
    sample(profiler)
    sample(profiler)
    (submit,) = sent(profiler, Submit)
    profiler.handle(1, CONTROLLER, Outcome(submit.id, int(status), "no"), ())
    profiler.tick(1)
    profiler.check()
    assert sent(profiler, Submit) == []
    profiler.tick(ms(200))
    assert len(sent(profiler, Submit)) == 1


def test_a_run_whose_model_raised_teaches_nothing() -> None:
    profiler = a_profiler()
    sample(profiler)
    (submit,) = sent(profiler, Submit)
    finish_run(profiler, submit, ms(2), ms(2), Status.FAILED)
    profiler.tick(s(10))
    assert sent(profiler, Distributions) == []


def test_samples_of_a_withdrawn_model_go_with_it() -> None:
    profiler = a_profiler(a_spec(batch_sizes=(1,)), a_spec("other", batch_sizes=(1,)), in_flight=1)
    sample(profiler, model="other/1")
    for _ in range(4):
        sample(profiler)
    announce(profiler, a_spec("other", batch_sizes=(1,)))
    profiler.check()
    assert len(profiler.staging.ids()) == 1
    sample(profiler)
    assert len(profiler.staging.ids()) == 1


def test_models_that_are_withdrawn_and_admitted_again_leave_no_backlog() -> None:
    profiler, other = a_profiler(staging_bytes=1 << 16), a_spec("other", batch_sizes=(1, 2, 4))
    for number in range(400):
        now_ns = number * ms(100)
        announce(profiler, other, a_spec(batch_sizes=(1, 2, 4), content_hash=str(number)))
        for name in ("sum/1", "other/1"):
            for _ in range(30):
                sample(profiler, now_ns, model=name, application=f"application-{number}")
        profiler.tick(now_ns)
        for submit in sent(profiler, Submit)[:1]:
            finish_run(profiler, submit, now_ns + ms(1), ms(1))
        announce(profiler, other)
        profiler.tick(now_ns + ms(50))
        profiler.check()
        assert len(profiler.out) <= 20
        profiler.out.clear()
    assert len(profiler.staging) <= profiler.settings.keys_max
    assert profiler.staging.held_bytes <= 1 << 16
    assert len(profiler.measurements) <= profiler.settings.keys_max


def test_another_content_under_the_same_name_is_learned_anew() -> None:
    profiler = a_profiler()
    now_ns = published_distributions(profiler, ms(2))
    announce(profiler, a_spec(batch_sizes=(1,), content_hash="another"))
    profiler.tick(now_ns + s(5))
    assert sent(profiler, Distributions)[-1].histograms == ()
    run_sample(profiler, now_ns + s(6), ms(9))


def test_inputs_beyond_the_room_for_them_are_dropped() -> None:
    profiler = a_profiler(staging_bytes=40)
    for _ in range(5):
        sample(profiler)
    assert profiler.staging.held_bytes == 32
    assert profiler.stats.values["horologe_profiler_samples_total", "sum", "1", "dropped"] == 3


def test_a_batch_that_there_is_no_room_for_is_not_tried() -> None:
    profiler = a_profiler(a_spec(batch_sizes=(1, 2, 16)), staging_bytes=100)
    sample(profiler)
    sizes = []
    for step in range(6):
        for submit in sent(profiler, Submit):
            sizes.append(submit.rows)
            finish_run(profiler, submit, ms(step), ms(1) // 2)
        profiler.tick(ms(step) + ms(0.9))
    assert sizes == [1, 2]
    assert not profiler.staging.ids()


def test_each_model_and_application_has_its_turn() -> None:
    specs = [a_spec(name, batch_sizes=(1,)) for name in ("a", "b")]
    profiler = a_profiler(*specs, in_flight=1)
    for application in ("x", "x", "x", "y"):
        sample(profiler, model="a/1", application=application)
    sample(profiler, model="b/1")
    turns, now_ns = [], 0
    while submits := sent(profiler, Submit):
        (submit,) = submits
        turns.append((submit.model, submit.application))
        finish_run(profiler, submit, now_ns + ms(1), ms(1))
        now_ns += ms(2)
        profiler.tick(now_ns)
    assert turns == [("a/1", "x"), ("a/1", "x"), ("a/1", "y"), ("b/1", "chat"), ("a/1", "x")]


def test_applications_without_end_take_bounded_room() -> None:
    profiler = a_profiler(keys_max=50)
    for number in range(400):
        sample(profiler, application=f"application-{number}")
    assert len(profiler.measurements) == 50
    assert len(profiler.staging.ids()) <= 51


def play_rows(profiler: Profiler, took_of: Callable[[int, int], int], until_ns: int, now_ns: int = 0) -> int:
    """Sample a row every 5 ms until `until_ns`; `took_of`(content, run) is how long each run takes. Return the time."""
    content, runs = 0, dict[bytes, int]()
    while now_ns < until_ns:
        content = (content + 1) % 200
        sample(profiler, now_ns, data=bytes([content]) * 16)
        for submit in sent(profiler, Submit):
            held = profiler.staging.inputs_of(submit.input_id)
            assert held is not None
            row = bytes(held[1][0])
            runs[row] = runs.get(row, 0) + 1
            finish_run(profiler, submit, now_ns + 1, took_of(row[0], runs[row]))
        now_ns += ms(5)
    profiler.tick(now_ns + s(2))
    return now_ns + s(2)


def test_a_model_whose_rows_take_as_long_in_every_round_is_dynamic() -> None:
    profiler = a_profiler(comparison_interval_ns=s(1), busy_share=1.0)
    now_ns = play_rows(profiler, lambda content, run: ms(1) + content * ms(1) // 10, s(2))
    assert sent(profiler, Distributions)[-1].dynamic
    play_rows(profiler, lambda content, run: ms(5), now_ns + s(12), now_ns)
    assert not sent(profiler, Distributions)[-1].dynamic


def test_a_model_whose_rows_take_another_time_in_every_run_is_static() -> None:
    profiler = a_profiler(comparison_interval_ns=s(1), busy_share=1.0)
    play_rows(profiler, lambda content, run: ms(1) + crc32(bytes([content, run])) % ms(10), s(10))
    assert not any(message.dynamic for message in sent(profiler, Distributions))


def test_the_verdict_survives_a_restart_and_ends_with_the_content() -> None:
    profiler = a_profiler(comparison_interval_ns=s(1), busy_share=1.0)
    now_ns = play_rows(profiler, lambda content, run: ms(1) + content * ms(1) // 10, s(2))
    state = sent(profiler, ProfilerState, profiler.store)[-1]
    again = a_profiler(comparison_interval_ns=s(1))
    again.restore(0, state, 0)
    again.tick(s(3))
    assert sent(again, Distributions)[-1].dynamic
    announce(profiler, a_spec(batch_sizes=(1,), content_hash="another"))
    profiler.tick(now_ns + s(5))
    profiler.check()
    assert not sent(profiler, Distributions)[-1].dynamic


def test_a_row_is_not_mistaken_for_one_before_the_restart() -> None:
    again = a_profiler()
    again.restore(0, ProfilerState(batches={"sum/1": [BatchTime(-1, Point(1, 0, ms(2), row=7))]}), 0)
    sample(again)
    (submit,) = sent(again, Submit)
    assert submit.id > 7, "the first run of a row has the row's number as its id"


def test_rows_that_cannot_run_do_not_stop_a_comparison() -> None:
    """Every tenth run is refused; those rows are left out."""
    profiler = a_profiler(comparison_interval_ns=s(1), busy_share=1.0)
    now_ns = runs = 0
    for content in range(400):
        now_ns += ms(200)
        sample(profiler, now_ns, data=bytes([content % 200]) * 16)
        for submit in sent(profiler, Submit):
            runs += 1
            held = profiler.staging.inputs_of(submit.input_id)
            assert held is not None
            if runs % 10:
                finish_run(profiler, submit, now_ns, ms(1) + crc32(bytes(held[1][0])) % ms(10))
            else:
                profiler.handle(now_ns, CONTROLLER, Outcome(submit.id, int(Status.REFUSED)), ())
    assert sent(profiler, Distributions)[-1].dynamic


def test_its_state_can_be_recorded() -> None:
    profiler = a_profiler(a_spec(batch_sizes=(1, 2)))
    now_ns = published_distributions(profiler, ms(2), 1)
    sample(profiler, now_ns)
    again = restore(snapshot(profiler))
    again.check()
    for each_profiler in (profiler, again):
        each_profiler.out.clear()
        each_profiler.tick(s(100))
    assert strip_tensors(again.out[-1].message) == strip_tensors(profiler.out[-1].message)


@settings(deadline=None)
@given(st.data())
def test_whatever_comes_in_whatever_order_everything_has_one_end(data: st.DataObject) -> None:
    """Send random samples, results, refusals and controller restarts: nothing leaks, and every run ends."""
    profiler = a_profiler(
        a_spec(batch_sizes=(1, 2, 4)), budget_ns=s(1), staging_bytes=300, keys_max=4, comparison_interval_ns=s(1)
    )
    now_ns = 0
    open_: list[Submit] = []
    for _ in range(data.draw(st.integers(1, 40))):
        now_ns += data.draw(st.sampled_from([0, ms(1), ms(300), s(2)]))
        match data.draw(st.sampled_from(["sample", "ended", "refused", "controller", "models", "time"])):
            case "sample":
                length, application = data.draw(st.integers(0, 9)), data.draw(st.sampled_from("ab"))
                sample(profiler, now_ns, length=length, application=application)
            case "ended" if open_:
                finish_run(profiler, open_.pop(0), now_ns, data.draw(st.integers(1, ms(50))))
            case "refused" if open_:
                profiler.handle(now_ns, CONTROLLER, Outcome(open_.pop().id, int(Status.REFUSED)), ())
            case "controller":
                profiler.handle(now_ns, CONTROLLER, PeerDisconnected(CONTROLLER), ())
                profiler.handle(now_ns, CONTROLLER, PeerConnected(CONTROLLER), ())
            case "models":
                announce(profiler, *data.draw(st.sampled_from([(), (a_spec(batch_sizes=(1, 2, 4)),)])))
        profiler.tick(now_ns)
        profiler.check()
        open_ += sent(profiler, Submit)
        assert (at_ns := profiler.wakeup_ns()) is None or at_ns > now_ns
    for _ in range(200):
        if (wake_ns := profiler.wakeup_ns()) is None:
            break
        profiler.tick(max(now_ns, wake_ns))
        now_ns = max(now_ns, wake_ns)
        profiler.check()
    assert profiler.wakeup_ns() is None
    assert profiler.pending() == 0
