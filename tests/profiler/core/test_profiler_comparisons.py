"""Comparisons of a model's rows in rounds: whether execution times depend on the input."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING
from zlib import crc32

from harness.builders import a_spec, sent
from horologe_common.clock import ms, s
from horologe_common.status import Status
from horologe_common.wire import Distributions, Outcome, Submit
from horologe_profiler.core.batch_fit import Point
from horologe_profiler.core.measurements import BatchTime, ProfilerState
from horologe_profiler.core.profiler import Profiler

if TYPE_CHECKING:
    from collections.abc import Callable
from profiler.profiler_builders import CONTROLLER, a_profiler, announce, finish_run, sample, staged_row


def play_rows(
    profiler: Profiler, took_of: Callable[[int, int], int], until_ns: int, now_ns: int = 0, every_ns: int = ms(5)
) -> int:
    """Sample rows until `until_ns`; `took_of`(content, run) is how long a run takes, 0: refused. Return the time."""
    content, runs = 0, Counter[int]()
    while now_ns < until_ns:
        content = (content + 1) % 200
        sample(profiler, now_ns, data=bytes([content]) * 16)
        for submit in sent(profiler, Submit):
            row = staged_row(profiler, submit)[1][0][0]
            runs[row] += 1
            if took_ns := took_of(row, runs[row]):
                finish_run(profiler, submit, now_ns + 1, took_ns)
            else:
                profiler.handle(now_ns, CONTROLLER, Outcome(submit.id, int(Status.REFUSED)), ())
        now_ns += every_ns
    profiler.tick(now_ns + s(2))
    return now_ns + s(2)


def test_a_model_whose_rows_take_as_long_in_every_round_is_dynamic() -> None:
    profiler = a_profiler(comparison_interval_ns=s(1), busy_share=1.0)
    now_ns = play_rows(profiler, lambda content, run: ms(1) + content * ms(1) // 10, s(2))
    assert sent(profiler, Distributions)[-1].dynamic
    play_rows(profiler, lambda content, run: ms(5), now_ns + s(12), now_ns)
    assert not sent(profiler, Distributions)[-1].dynamic


def test_a_model_whose_rows_take_as_long_as_they_are_is_known_after_one_round() -> None:
    profiler = a_profiler(comparison_interval_ns=s(60), busy_share=1.0)
    for number, length in enumerate((70, 30, 110, 10, 90, 50, 20, 120, 40, 100, 60, 80)):
        sample(profiler, s(number), length=length)
        (submit,) = sent(profiler, Submit)
        finish_run(profiler, submit, s(number) + 1, ms(length))
    profiler.tick(s(20))
    assert sent(profiler, Distributions)[-1].dynamic
    sample(profiler, s(20), length=10)
    assert len(sent(profiler, Submit)) == 1, "no row of the comparison runs again"


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
    profiler, numbers = a_profiler(comparison_interval_ns=s(1), busy_share=1.0), itertools.count(1)
    play_rows(
        profiler,
        lambda content, run: ms(1) + crc32(bytes([content])) % ms(10) if next(numbers) % 10 else 0,
        s(80),
        every_ns=ms(200),
    )
    assert sent(profiler, Distributions)[-1].dynamic
