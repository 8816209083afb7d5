"""Pipelines as others see them: arrivals for the controller, metrics, samples for the profiler."""

from __future__ import annotations

from horologe_common.clock import ms, s
from horologe_common.core.protocol import PeerConnected, PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import Outputs, QueriesArrived, Query, RowStatus, RunDone, Sample, Submit
from selector.pipeline_desk import FOUR, INPUTS, OUTPUTS, PipelineDesk
from selector.selector_harness import CONTROLLER, FRONTEND, WORKER


def test_the_controller_learns_of_all_queries_also_of_refused_ones() -> None:
    desk = PipelineDesk(pipeline_runs=2)
    for number in range(1, 4):
        desk.receive(FRONTEND, Query(number, "p/1", ms(100), 1))
        assert desk.take(QueriesArrived) == [QueriesArrived((("p", 1),))]
    assert desk.answer().status == Status.REFUSED
    desk.receive(FRONTEND, Query(4, "p/1", ms(100), 1, best_effort=True))
    desk.receive(FRONTEND, Query(5, "m/1", ms(100), 1))
    desk.receive(CONTROLLER, PeerDisconnected(CONTROLLER))
    desk.receive(FRONTEND, Query(6, "p/1", ms(100), 1))
    desk.receive("", PeerConnected(CONTROLLER))
    assert not desk.take(QueriesArrived)


def test_metrics_count_calls_and_drops_by_stage() -> None:
    desk = PipelineDesk()
    run = desk.query()
    desk.call(run, 1)
    desk.call(run, 2, "n")
    desk.outputs(desk.take(Submit)[0].id)
    desk.selector.refresh_stats()
    values = {key: value for key, value in desk.selector.stats.values.items() if key[1:2] == ("p",)}
    assert values["horologe_pipeline_calls_total", "p", "m"] == 1
    assert values["horologe_pipeline_drops_total", "p", "n"] == 1
    assert values["horologe_pipeline_open", "p"] == 1


def test_device_time_counts_by_what_became_of_the_query() -> None:
    desk = PipelineDesk()
    for number, answered in ((1, True), (2, False)):
        run = desk.query(number)
        desk.call(run, 1)
        rows = (RowStatus(desk.take(Submit)[0].id, 1),)
        desk.receive(WORKER, Outputs(number, rows, OUTPUTS, "m/1", 4, s(1), s(1) + ms(8)), [FOUR])  # a batch of four
        if answered:
            desk.finish(run)
        else:
            desk.receive("driver/p", RunDone(run, int(Status.REFUSED), "no"))
    desk.selector.refresh_stats()
    values = desk.selector.stats.values
    assert values["horologe_pipeline_device_seconds_total", "p", "answered"] == 0.002
    assert values["horologe_pipeline_device_seconds_total", "p", "failed"] == 0.002


def test_the_profiler_gets_samples_of_intermediates() -> None:
    desk = PipelineDesk()
    desk.receive("", PeerConnected("profiler/0#1"))
    for _ in range(3):
        run = desk.query()
        desk.call(run, 1)
        desk.outputs(desk.take(Submit)[0].id)
        desk.finish(run)
    assert desk.take(Sample) == [Sample("m/1", INPUTS, 1, 0, "p")]
    desk.receive("", PeerDisconnected("profiler/0#1"))
    desk.advance(s(2))
    desk.call(desk.query(), 1)
    desk.outputs(desk.take(Submit)[0].id)
    assert desk.take(Sample) == []
