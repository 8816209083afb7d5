"""Samples of finished requests that the frontend sends to the profiler: rates, sizes and statuses."""

from __future__ import annotations

from typing import Any

import pytest

from frontend.frontend_builders import CLIENT, SELECTOR, WORKER, connected_frontend
from harness.builders import a_predict, a_spec, sent, some_bytes
from horologe_common.clock import ms, s
from horologe_common.core.protocol import PeerConnected, PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import Answer, Cancel, Dispatch, Query, Sample
from horologe_frontend.core.frontend import Frontend
from horologe_frontend.core.sampling import SampleLimits

PROFILER = "profiler/0#1"


def a_frontend(**fields: Any) -> Frontend:
    frontend = connected_frontend(specs=(a_spec(cache=True), a_spec("other", cache=True)), **fields)
    frontend.handle(0, PROFILER, PeerConnected(PROFILER), ())
    return frontend


def serve(frontend: Frontend, now_ns: int = 0, status: int = Status.OK, cached: bool = False, **fields: Any) -> None:
    """Send a request and its answer."""
    rows = fields.get("rows", 1)
    frontend.handle(now_ns, CLIENT, a_predict(1, **fields), [some_bytes(rows)])
    (query,) = sent(frontend, Query)
    frontend.handle(now_ns, SELECTOR, Answer(query.id, int(status), cached=cached), ())
    frontend.tick(now_ns)
    frontend.check()
    assert not frontend.staging.ids()


def samples(frontend: Frontend) -> list[Sample]:
    return sent(frontend, Sample, PROFILER)


def test_finished_request_is_sampled_with_its_inputs() -> None:
    frontend = a_frontend()
    frontend.handle(0, CLIENT, a_predict(1, rows=2, application="chat"), [b"x" * 32])
    (query,) = sent(frontend, Query)
    frontend.handle(0, SELECTOR, Answer(query.id, 0), ())
    (out,) = [out for out in frontend.out if isinstance(out.message, Sample)]
    assert (out.to, out.message.model, out.message.rows, out.message.application) == (PROFILER, "sum/1", 2, "chat")
    assert [bytes(buffer) for buffer in out.buffers] == [b"x" * 32]


def test_burst_then_one_sample_per_second_for_each_model_and_application() -> None:
    frontend = a_frontend(samples=SampleLimits(burst=3))
    for number in range(10):
        serve(frontend, ms(number))
    assert len(samples(frontend)) == 3
    serve(frontend, ms(20), application="chat")
    serve(frontend, ms(30), model="other")
    assert len(samples(frontend)) == 2
    for number in range(40):
        serve(frontend, s(1) + ms(100) * number)
    assert len(samples(frontend)) == 4


@pytest.mark.parametrize(
    ("status", "shown"),
    [(Status.OK, 1), (Status.LATE, 1), (Status.REFUSED, 1), (Status.FAILED, 0), (Status.LOST, 0)],
)
def test_refused_and_late_requests_are_sampled_and_failed_ones_are_not(status: Status, shown: int) -> None:
    frontend = a_frontend()
    serve(frontend, status=status)
    assert len(samples(frontend)) == shown


def test_request_past_its_deadline_is_sampled() -> None:
    """Check a long request: without it, the profiler would underestimate the lengths."""
    frontend = a_frontend(grace_ns=0)
    frontend.handle(0, CLIENT, a_predict(1, budget_ms=10), [some_bytes()])
    (query,) = sent(frontend, Query)
    frontend.handle(0, "controller/0#1", Dispatch(9, WORKER, (query.id,)), ())
    frontend.tick(ms(10))
    assert len(samples(frontend)) == 1


def test_cached_and_cancelled_requests_are_not_sampled() -> None:
    frontend = a_frontend()
    serve(frontend, cached=True)
    frontend.handle(0, CLIENT, a_predict(5), [some_bytes()])
    frontend.handle(0, CLIENT, Cancel((5,)), ())
    assert samples(frontend) == []


def test_large_inputs_are_not_sampled() -> None:
    frontend = a_frontend(samples=SampleLimits(most_bytes=40))
    serve(frontend, rows=4)
    assert samples(frontend) == []
    serve(frontend, rows=2)
    assert len(samples(frontend)) == 1


def test_all_samples_share_a_rate_in_bytes() -> None:
    frontend = a_frontend(samples=SampleLimits(bytes_per_s=160))
    serve(frontend)
    serve(frontend, ms(99), model="other")
    assert len(samples(frontend)) == 1
    serve(frontend, ms(100), model="other")
    assert len(samples(frontend)) == 1


def test_no_samples_without_a_profiler_or_with_interval_0() -> None:
    frontend = a_frontend()
    frontend.handle(0, PROFILER, PeerDisconnected(PROFILER), ())
    serve(frontend)
    assert sent(frontend, Sample) == []
    frontend = a_frontend(sample_ns=0)
    serve(frontend)
    assert sent(frontend, Sample) == []


def test_number_of_rate_limits_is_bounded() -> None:
    frontend = a_frontend(samples=SampleLimits(bytes_per_s=1 << 40))
    for number in range(1100):
        serve(frontend, number, application=f"application-{number}")
    assert len(samples(frontend)) == 1100
    frontend.check()
