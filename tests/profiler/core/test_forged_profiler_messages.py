"""Messages to the profiler with values out of range, from wrong senders, and peers that never answer."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from harness.builders import a_spec, a_state, a_tensor, sent, some_bytes
from harness.forged_messages import SENDERS, check_sendable, forged_messages
from horologe_common.clock import ms, s
from horologe_common.core.protocol import PeerConnected, PeerDisconnected
from horologe_common.wire import Cancel, Dispatch, Distributions, Models, Outcome, Outputs, RowStatus, Sample, Submit
from horologe_profiler.core.measurements import MeasurementKey
from horologe_profiler.core.profiler import Profiler
from profiler.profiler_builders import CONTROLLER, FRONTEND, WORKER, a_profiler, finish_run, run_sample, sample

SPECS = (a_spec(batch_sizes=(1, 2)), a_spec("product"))
MESSAGES: tuple[tuple[str, Any], ...] = (
    (FRONTEND, Sample("sum/1", (a_tensor(2),), 2, 7, "chat")),
    (CONTROLLER, Dispatch(3, WORKER, (1, 2))),
    (WORKER, Outputs(1, (RowStatus(1, 1),), (), "sum/1", 1, ms(1), ms(4), "hash-sum", 1.5)),
    (CONTROLLER, Outcome(1, 5, "no room", 7)),
    (CONTROLLER, Models(0, tuple(map(a_state, SPECS)))),
)


def serve(profiler: Profiler, now_ns: int) -> None:
    """Measure a few rows of another model, and check that what the profiler sends can be encoded."""
    profiler.handle(now_ns, CONTROLLER, Models(0, tuple(map(a_state, SPECS))), ())
    profiler.tick(now_ns + s(30))
    check_sendable(profiler)
    profiler.out.clear()
    for second in range(60, 80):
        sample(profiler, now_ns + s(second), model="product/1")
        for submit in sent(profiler, Submit):
            finish_run(profiler, submit, now_ns + s(second) + ms(3), ms(2))
    assert profiler.measurements.count_times(MeasurementKey("product/1", "chat", 0)) >= 5
    assert "product/1" in [message.model for message in sent(profiler, Distributions)]
    profiler.refresh_stats()
    check_sendable(profiler)
    profiler.check()


def with_a_run() -> tuple[Profiler, Submit]:
    """Return a profiler with a run in flight."""
    profiler = a_profiler(*SPECS, comparison_interval_ns=s(60), busy_share=1.0)
    sample(profiler)
    (submit,) = sent(profiler, Submit)
    return profiler, submit


@pytest.mark.parametrize(("sender", "message"), MESSAGES, ids=lambda value: type(value).__name__)
def test_no_value_of_a_message_is_a_fault(sender: str, message: Any) -> None:
    for name, forged, buffers in forged_messages(message):
        profiler, submit = with_a_run()
        try:
            profiler.handle(ms(5), sender, forged, buffers)
            profiler.tick(ms(6))
            profiler.check()
            serve(profiler, s(1))
        except Exception as error:
            raise AssertionError(f"{name}: {forged}"[:2000]) from error
        assert submit.id == 1


@pytest.mark.parametrize(("right", "message"), MESSAGES, ids=lambda value: type(value).__name__)
def test_no_sender_of_a_message_is_a_fault(right: str, message: Any) -> None:
    for sender in SENDERS:
        profiler, _ = with_a_run()
        profiler.handle(ms(5), sender, message, [some_bytes(2)] if isinstance(message, Sample) else ())
        profiler.tick(ms(6))
        wrong = sender.partition("/")[0] != right.partition("/")[0]
        if wrong and not isinstance(message, Sample | Dispatch):
            assert profiler.pending() == 1, sender
            assert profiler.stats.values["horologe_invalid_messages_total", type(message).__name__] == 1
        serve(profiler, s(1))


def test_messages_about_unknown_runs_models_and_inputs_change_nothing() -> None:
    profiler, _ = with_a_run()
    for message in (
        Outputs(1, (RowStatus(999, 1), RowStatus(998, 1)), (), "sum/1", 1, 0, 5),
        Outcome(999, 5),
        Dispatch(1, WORKER, (999,)),
        Sample("unknown/1", (), 1),
    ):
        for sender in (WORKER, CONTROLLER, FRONTEND):
            profiler.handle(ms(5), sender, message, ())
    assert profiler.pending() == 1
    serve(profiler, s(1))


def test_a_status_that_is_not_known_ends_the_run_as_failed() -> None:
    profiler, submit = with_a_run()
    profiler.handle(ms(5), CONTROLLER, Outcome(submit.id, 99, "new"), ())
    assert profiler.pending() == 0
    assert profiler.stats.values["horologe_profiler_runs_total", "sum", "1", "FAILED"] == 1


def test_peers_that_never_answer_cost_a_run_each_and_no_memory() -> None:
    """Neither controller nor worker answers: each run is given up, and the queue stays bounded."""
    profiler = a_profiler(*SPECS, comparison_interval_ns=s(60), staging_bytes=1000)
    for second in range(300):
        for model in ("sum/1", "product/1"):
            sample(profiler, s(second), model=model)
    cancelled = {task_id for message in sent(profiler, Cancel) for task_id in message.ids}
    assert 20 < len(cancelled) < 60
    assert profiler.pending() <= 2
    assert profiler.staging.held_bytes <= 1000
    assert len(sent(profiler, Submit)) == len(cancelled) + profiler.pending()
    for number in range(1, 10_001):
        profiler.handle(s(400), CONTROLLER, Dispatch(number, "worker/never#1", (1,)), ())
    profiler.handle(s(400), CONTROLLER, PeerDisconnected(CONTROLLER), ())
    profiler.handle(s(400), CONTROLLER, PeerConnected(CONTROLLER), ())
    assert profiler.pending() == 0
    serve(profiler, s(500))


def test_a_specification_with_impossible_batch_sizes_queues_no_batches() -> None:
    spec = msgspec.structs.replace(SPECS[0], batch_sizes=(1, -4, 0, 1 << 62))
    profiler = a_profiler(spec, SPECS[1], busy_share=1.0)
    at_ns = run_sample(profiler, 0, ms(1))
    profiler.tick(at_ns + s(1))
    assert not sent(profiler, Submit)
    serve(profiler, s(10))


@pytest.mark.parametrize(
    "fields",
    [{"begin_ns": 9, "end_ns": 5}, {"end_ns": 1 << 62}, {"slowness": math.nan}, {"slowness": 0.0}, {"batch_size": -1}],
)
def test_a_time_out_of_range_ends_the_run_and_is_not_recorded(fields: dict[str, Any]) -> None:
    profiler, submit = with_a_run()
    outputs = Outputs(1, (RowStatus(submit.id, 1),), (), "sum/1", 1, 0, ms(2))
    profiler.handle(ms(5), WORKER, msgspec.structs.replace(outputs, **fields), ())
    profiler.check()
    assert profiler.pending() == 0
    assert profiler.measurements.count_times(MeasurementKey("sum/1", "chat", 0)) == 0
    assert profiler.stats.values["horologe_invalid_messages_total", "Outputs"] == 1
