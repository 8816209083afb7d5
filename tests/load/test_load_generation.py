"""Load: closed and open loops, samples, and targets over the SDK."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from horologe_common.core.instruments import quantile
from horologe_common.status import Late, Lost, Refused
from horologe_experiments.live.model_traffic import one_by_one
from horologe_load.arrivals import poisson
from horologe_load.load_loops import closed_loop, open_loop
from horologe_load.samples import ClientOutcome, Samples, error_text, summarize
from horologe_load.targets import ModelInput, ModelLoad, SdkTarget, distinct_rows

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(("share", "wanted"), [(0.5, 50), (0.99, 99), (0.999, 100), (0.0, 1), (1.0, 100)])
def test_quantile_is_the_nearest_rank(share: float, wanted: int) -> None:
    assert quantile(range(1, 101), share) == wanted


def test_quantile_of_nothing_is_not_a_number() -> None:
    assert math.isnan(quantile([], 0.5))


def test_latency_counts_from_the_due_time() -> None:
    samples = Samples()
    for number in range(10):
        index = samples.add_request(number * 1_000_000, number * 1_000_000 + 5_000_000)  # the generator was 5 ms late
        samples.add_answer(index, number * 1_000_000 + 6_000_000, ClientOutcome.OK, None)
    run = summarize(samples, 1.0, slo_ms=5.5)
    assert run.p50_ms == 6.0
    assert run.delay_p99_ms == 5.0
    assert (run.ok, run.in_time, run.late) == (10, 0, 10)


def test_every_request_is_counted_once() -> None:
    samples = Samples(keep_every=2)
    for outcome in (*ClientOutcome, ClientOutcome.OK):
        index = samples.add_request(0, 0)
        if outcome != ClientOutcome.UNANSWERED:
            samples.add_answer(index, 1_000_000, outcome, outcome.name)
    run = summarize(samples, 2.0, slo_ms=10)
    counts = (run.in_time, run.refused, run.late, run.failed, run.unanswered, run.unsent)
    assert counts == (2, 1, 1, 1, 1, 1)
    assert sum(counts) == run.sent
    assert run.goodput == 1.0
    assert samples.in_flight == 1
    assert samples.kept == {0: "OK", 6: "OK"}


def test_a_summary_without_answers_has_zeros() -> None:
    run = summarize(Samples(), 1.0)
    assert (run.p99_ms, run.refusal_p99_ms, run.attained, run.goodput) == (0.0, 0.0, 0.0, 0.0)


def test_reasons_leave_out_the_figures_of_one_request() -> None:
    assert error_text(Refused("no capacity: 12.3 ms needed")) == "no capacity"
    assert error_text((b"HTTP/1.1 503 Busy", b"possible in 18.9 ms")) == "503 possible in # ms"
    assert error_text(None) == "connection lost"


class SlowTarget:
    """Answers after `delay_s`, in the order of the requests."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        self.most_in_flight = self.in_flight = 0

    async def start(self, clients: int, on_answer: Callable[[int, int, int, object], None]) -> None:
        self.on_answer = on_answer

    def send(self, index: int, due_ns: int) -> None:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        asyncio.get_running_loop().call_later(self.delay_s, self.answer, index)

    def answer(self, index: int) -> None:
        self.in_flight -= 1
        self.on_answer(index, time.monotonic_ns(), ClientOutcome.OK, None)


def test_the_closed_loop_keeps_its_number_of_requests_in_flight() -> None:
    target, samples = SlowTarget(0.001), Samples()
    seconds = asyncio.run(closed_loop(target, samples, 7, 0.1))
    assert target.most_in_flight == 7
    assert target.in_flight == samples.in_flight == 0
    assert seconds >= 0.1


def test_one_by_one_sends_the_next_request_after_the_answer() -> None:
    target, samples = SlowTarget(0.001), Samples()
    asyncio.run(one_by_one(target, samples, 5, gap_s=0.001))
    assert (target.most_in_flight, len(samples.outcomes)) == (1, 5)


def test_the_open_loop_sends_all_and_never_early() -> None:
    target, samples, arrivals = SlowTarget(0.05), Samples(), poisson(2000, 0.1, 1)
    asyncio.run(open_loop(target, samples, arrivals))
    assert len(samples.outcomes) == len(arrivals)
    assert samples.in_flight == 0
    assert target.most_in_flight > 7  # a slow server does not slow the arrivals
    assert samples.delays_ns()[0] >= 0
    assert np.diff(samples.due_ns).tolist() == np.diff(arrivals).tolist()


def test_the_open_loop_ends_when_every_answer_came_while_it_was_sending() -> None:
    class InstantTarget(SlowTarget):
        def send(self, index: int, due_ns: int) -> None:
            self.on_answer(index, time.monotonic_ns(), ClientOutcome.UNSENT, None)

    samples = Samples()
    asyncio.run(asyncio.wait_for(open_loop(InstantTarget(0), samples, [0, 1, 2]), 5))
    assert samples.outcomes == [ClientOutcome.UNSENT] * 3
    assert asyncio.run(open_loop(InstantTarget(0), samples, [])) == 0.0


def test_inputs_are_distinct_and_near_their_images() -> None:
    images = np.eye(4, dtype=np.float32)
    rows = distinct_rows(images, 100, seed=1)
    assert len(np.unique(rows, axis=0)) == 100
    assert rows.dtype == np.float32
    assert (np.round(rows).sum(axis=1) == 1).all()


class FakeClient:
    """Answers models by name: `ok` with a cached reply, the others with an error."""

    def __init__(self) -> None:
        self.budgets_ms: list[float | None] = []

    def submit(self, model: str, inputs: Any, **options: Any) -> asyncio.Future[Any]:
        self.budgets_ms.append(options.get("slo_ms"))
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        errors = {"refused": Refused("full: 3 ms"), "late": Late("late"), "lost": Lost("lost")}
        if model in errors:
            future.set_exception(errors[model])
        else:
            future.set_result(type("Reply", (), {"cached": True})())
        return future


def test_the_sdk_target_reports_every_outcome() -> None:
    models = ["ok", "refused", "late", "lost"]
    target = SdkTarget(FakeClient(), lambda index: ModelInput(models[index], np.ones(1)), 10**9)  # type: ignore[arg-type]
    samples = Samples()
    asyncio.run(open_loop(target, samples, [0, 1, 2, 3]))
    assert samples.outcomes == [ClientOutcome.OK, ClientOutcome.REFUSED, ClientOutcome.LATE, ClientOutcome.FAILED]
    assert target.cached == 1
    assert set(samples.reasons) == {"full", "lost"}


def test_the_slo_counts_from_the_due_time_or_from_sending() -> None:
    async def budgets(from_due: bool) -> tuple[list[float | None], list[int]]:
        client, outcomes = FakeClient(), list[int]()
        target = SdkTarget(client, lambda index: ModelInput("ok", np.ones(1)), 10**9, from_due)  # type: ignore[arg-type]
        await target.start(1, lambda index, now_ns, outcome, answer: outcomes.append(outcome))
        now_ns = time.monotonic_ns()
        target.send(0, now_ns - 400_000_000)
        target.send(1, now_ns - 2 * 10**9)
        await asyncio.sleep(0)
        return client.budgets_ms, sorted(outcomes)

    (budget_ms,), outcomes = asyncio.run(budgets(from_due=True))
    assert budget_ms is not None
    assert 0 < budget_ms <= 600
    assert outcomes == [ClientOutcome.OK, ClientOutcome.UNSENT]
    assert asyncio.run(budgets(from_due=False)) == ([1000.0, 1000.0], [ClientOutcome.OK, ClientOutcome.OK])


def test_the_load_of_a_model_is_summed_up() -> None:
    async def run() -> None:
        load = ModelLoad(FakeClient(), "ok", np.eye(4, dtype=np.float32), slo_ms=1000, seed=1)  # type: ignore[arg-type]
        offered = await load.offer_rate(500, 0.1)
        assert offered.sent == offered.in_time == offered.cached > 20
        assert offered.attained == 1.0
        saturated = await load.saturate(4, 0.05)
        assert saturated.throughput > 100
        assert saturated.slo_ms == 0

    asyncio.run(run())
