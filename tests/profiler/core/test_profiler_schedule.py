"""Which sample the profiler runs next, in which batches, and how much of a device it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.builders import a_spec, sent
from horologe_common.clock import ms, s
from horologe_common.wire import Distributions, Submit
from profiler.profiler_builders import a_profiler, finish_run, published_distributions, run_sample, sample, staged_row

if TYPE_CHECKING:
    from horologe_profiler.core.profiler import Profiler


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


def play_runs(profiler: Profiler, from_ns: int, until_ns: int) -> list[tuple[int, int]]:
    """Offer a sample every 10 ms, and finish each run after 10 ms. Return when the runs began, and their urgency."""
    runs = []
    for now_ns in range(from_ns, until_ns, ms(10)):
        sample(profiler, now_ns)
        for submit in sent(profiler, Submit):
            runs.append((now_ns - from_ns, submit.urgent_after_ns))
            finish_run(profiler, submit, now_ns + ms(10), ms(10))
    return runs


def test_a_time_without_runs_saves_no_share_for_later() -> None:
    """Else a comparison of inputs, once a minute, would take most of a device's time for a second."""
    profiler = a_profiler(busy_share=0.1, initial_runs=10**6)
    for from_ns in (0, s(60)):
        assert play_runs(profiler, from_ns, from_ns + s(1)) == [(number * ms(100), 0) for number in range(10)]


def test_the_first_runs_follow_each_other_and_those_after_them_keep_to_the_share() -> None:
    settings = {"busy_share": 0.1, "initial_time_ns": ms(25), "initial_runs": 10**6}
    runs = play_runs(a_profiler(comparison_interval_ns=s(60), **settings), 0, s(1))
    assert [begin_ns for begin_ns, _ in runs][:6] == [0, ms(10), ms(20), ms(30), ms(130), ms(230)]


def test_runs_are_urgent_and_free_until_the_inputs_have_been_compared() -> None:
    profiler = a_profiler(busy_share=0.1, initial_time_ns=s(4), comparison_interval_ns=s(60))
    urgent = [urgent_ns for _, urgent_ns in play_runs(profiler, 0, s(2))]
    assert urgent[:36] == [ms(50)] * 36
    assert set(urgent[36:]) <= {0}
    assert 36 < len(urgent) < 60, "the runs after the comparison keep to their share"


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
    run_sample(profiler, now_ns, ms(2), application="search")
    run_sample(profiler, now_ns + s(1), ms(2), length=40)
    run_sample(profiler, now_ns + s(30), ms(2))
    sample(profiler, now_ns + s(31))
    assert sent(profiler, Submit) == []


def test_a_row_is_also_run_in_batches_of_itself_as_far_as_they_are_short() -> None:
    profiler = a_profiler(a_spec(batch_sizes=(1, 2, 4, 8)), batch_time_max_ns=ms(20))
    sample(profiler, data=b"abcd" * 4)
    now_ns, sizes = 0, []
    while submits := sent(profiler, Submit):
        (submit,) = submits
        sizes.append(submit.rows)
        headers, buffers = staged_row(profiler, submit)
        assert (headers[0].shape, buffers) == ((submit.rows, 4), [b"abcd" * 4 * submit.rows])
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
