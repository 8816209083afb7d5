"""Profiler core: it runs samples alone, publishes its measurements, and affects no one when something fails."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.builders import a_spec, a_tensor, sent
from horologe_common.clock import ms, s
from horologe_common.core.protocol import PeerConnected, PeerDisconnected
from horologe_common.recording.snapshot import restore, snapshot, strip_tensors
from horologe_common.status import Status
from horologe_common.wire import Cancel, Dispatch, Distributions, Outcome, Ship, Submit
from horologe_profiler.core.measurements import ProfilerState
from profiler.profiler_builders import (
    CONTROLLER,
    WORKER,
    a_profiler,
    announce,
    finish_run,
    published_distributions,
    run_sample,
    sample,
    staged_row,
)


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
    assert staged_row(profiler, submit) == ((a_tensor(1),), [b"a" * 16])


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


def test_times_on_a_slow_device_count_as_on_the_fastest_one() -> None:
    profiler, now_ns = a_profiler(), 0
    for took_ms, slowness in ((2, 1.0), (6, 3.0)) * 3:
        sample(profiler, now_ns)
        (submit,) = sent(profiler, Submit)
        finish_run(profiler, submit, now_ns + ms(took_ms), ms(took_ms), slowness=slowness)
        now_ns += ms(2 * took_ms)
    profiler.tick(now_ns + s(3))
    (part,) = sent(profiler, Distributions)[-1].histograms
    assert (part.edges_ns, part.counts) == ((ms(2), ms(2) + 1), (6,))


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
    profiler = a_profiler(staging_bytes=1 << 16, keys_max=64)
    other = a_spec("other", batch_sizes=(1, 2, 4))
    for number in range(100):
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
    assert len(profiler.staging) <= profiler.rules.keys_max
    assert profiler.staging.held_bytes <= 1 << 16
    assert len(profiler.measurements) <= profiler.rules.keys_max


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
