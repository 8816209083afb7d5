"""Traffic of the console: differences between two readings of the frontend's statistics."""

from __future__ import annotations

from msgspec.structs import replace

from frontend.frontend_builders import CLIENT, NOW, SELECTOR, connected_frontend, request_application
from harness.builders import a_predict, a_spec, a_state, sent, some_bytes
from horologe_common.clock import ms
from horologe_common.pipelines import PIPELINE_RUNTIME
from horologe_common.status import Status
from horologe_common.wire import Answer, Models, Query
from horologe_frontend.console.traffic import ROWS_MAX, Totals, TrafficMeter, read_totals
from horologe_frontend.core.frontend import Frontend


def answer(frontend: Frontend, model: str, status: Status, at_ns: int = NOW) -> None:
    frontend.handle(at_ns, CLIENT, a_predict(7, model), [some_bytes()])
    (query,) = sent(frontend, Query, SELECTOR)
    frontend.handle(at_ns + ms(1), SELECTOR, Answer(query.id, int(status)), ())


def test_models_pipelines_and_applications_are_told_apart() -> None:
    frontend = connected_frontend()
    pipeline = a_spec("steps")
    frontend.handle(0, SELECTOR, Models(0, (a_state(replace(pipeline, runtime=PIPELINE_RUNTIME)),), number=2), ())
    answer(frontend, "one", Status.OK)
    answer(frontend, "one", Status.REFUSED)
    answer(frontend, "steps", Status.OK)
    query = request_application(frontend, "bare")
    assert query
    frontend.handle(NOW + ms(1), SELECTOR, Answer(query.id, int(Status.LATE)), ())
    totals = {(one.kind, one.name): one for one in read_totals(frontend, 0)}
    assert set(totals) == {
        ("model", "one/1"),
        ("pipeline", "steps/1"),
        ("application", "bare"),
        ("application", "digits"),
    }
    model, application = totals["model", "one/1"], totals["application", "bare"]
    assert (model.in_time, model.failed, sum(model.latency)) == (1, {"REFUSED": 1}, 2)
    assert (application.in_time, application.failed, sum(application.latency)) == (0, {"LATE": 1}, 1)


def test_only_models_with_new_answers_are_read() -> None:
    frontend = connected_frontend()
    answer(frontend, "one", Status.OK, NOW)
    answer(frontend, "two", Status.OK, NOW + ms(100))
    names = [one.name for one in read_totals(frontend, NOW + ms(50)) if one.kind == "model"]
    assert names == ["two/1"]


def test_a_reading_holds_what_has_changed() -> None:
    meter = TrafficMeter()
    assert [row.in_time for row in meter.read([Totals("model", "m/1", 5, {"LATE": 1}, (1, 5))])] == [5]
    assert meter.read([Totals("model", "m/1", 5, {"LATE": 1}, (1, 5))]) == []
    (row,) = meter.read([Totals("model", "m/1", 7, {"LATE": 1, "REFUSED": 2}, (1, 9))])
    assert (row.in_time, row.failed, row.latency) == (2, {"REFUSED": 2}, [(1, 4)])


def test_the_busiest_are_returned_if_there_are_too_many() -> None:
    totals = [Totals("model", f"m{number}/1", number, {}, (number,)) for number in range(1, ROWS_MAX + 50)]
    rows = TrafficMeter().read(totals)
    assert len(rows) == ROWS_MAX
    assert min(row.in_time for row in rows) == 50
