"""`libs/load`: arrivals, open and closed loops, samples, the search for a capacity."""

from __future__ import annotations

import asyncio
import math
import random
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from horologe_common.core.instruments import quantile
from horologe_common.status import Late, Lost, Refused
from horologe_load.arrivals import RateStep, gamma, gamma_steps, poisson, popularity, read_arrivals
from horologe_load.capacity_search import MAX_TRIALS, PRECISION, CapacitySearch, Confirmation
from horologe_load.load_loops import closed_loop, one_by_one, open_loop
from horologe_load.samples import Outcome, Samples, error_text, summarize
from horologe_load.targets import ModelInput, ModelLoad, SdkTarget, distinct_rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_poisson_is_the_same_for_the_same_seed_only() -> None:
    assert poisson(1000, 2, 1) == poisson(1000, 2, 1)
    assert poisson(1000, 2, 1) != poisson(1000, 2, 2)


def test_poisson_has_its_rate_its_variance_and_its_order() -> None:
    arrivals = poisson(2000, 10, 3)
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] < 10e9
    gaps = np.diff(arrivals) / 1e9
    assert 1 / gaps.mean() == pytest.approx(2000, rel=0.03)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)


@pytest.mark.parametrize("cv", [0.25, 1.0, 4.0])
def test_gamma_gaps_have_their_rate_and_their_variance_over_squared_mean(cv: float) -> None:
    arrivals = gamma(300, cv, 600, 5)
    gaps = np.diff(arrivals)
    assert (gaps >= 0).all()
    assert arrivals[-1] <= 600e9
    assert 1e9 / gaps.mean() == pytest.approx(300, rel=0.03)
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(cv, rel=0.06)


def test_short_steps_of_gamma_arrivals_keep_the_rate() -> None:
    """A process that began anew in every step would have (cv - 1) / 2 arrivals too many in each."""
    arrivals = gamma_steps([RateStep(0.1, 100, 4)] * 5000, 7)
    assert len(arrivals) == pytest.approx(50_000, rel=0.03)


def test_gamma_steps_change_the_rate_and_may_be_silent() -> None:
    arrivals = gamma_steps([RateStep(50, 150), RateStep(10, 0), RateStep(50, 250, 4)], 7)
    counts = np.histogram(arrivals / 1e9, [0, 50, 60, 110])[0]
    assert counts[1] == 0
    assert counts[0] == pytest.approx(7500, rel=0.05)
    assert counts[2] == pytest.approx(12500, rel=0.1)
    assert (gamma_steps([RateStep(50, 150)], 7) == gamma(150, 1, 50, 7)).all()
    assert gamma_steps([RateStep(1, 0)], 7).size == 0


@pytest.mark.parametrize("step", [RateStep(1, -1), RateStep(0, 1), RateStep(1, 1, 0), RateStep(1, float("nan"))])
def test_invalid_gamma_steps_are_errors(step: RateStep) -> None:
    with pytest.raises(ValueError, match="wanted a rate"):
        gamma_steps([step], 1)


@pytest.mark.parametrize(("rate", "seconds"), [(0, 1), (1, 0), (-1, 1)])
def test_poisson_rejects_what_is_not_positive(rate: float, seconds: float) -> None:
    with pytest.raises(ValueError, match="wanted both above 0"):
        poisson(rate, seconds, 1)


def test_popularity_is_a_power_law() -> None:
    assert popularity(3, 1.0).tolist() == pytest.approx([6 / 11, 3 / 11, 2 / 11])
    assert popularity(2, 0.0).tolist() == [0.5, 0.5]


def test_arrivals_are_read_from_files(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("2,a\n0.5\n\n1,a\n")
    assert read_arrivals(path) == {"a": [10**9, 2 * 10**9], "": [5 * 10**8]}
    with pytest.raises(ValueError, match="more than 1 lines"):
        read_arrivals(path, limit=1)
    path.write_text("1\n-1\n")
    with pytest.raises(ValueError, match="line 2: got '-1'"):
        read_arrivals(path)


@pytest.mark.parametrize(("share", "wanted"), [(0.5, 50), (0.99, 99), (0.999, 100), (0.0, 1), (1.0, 100)])
def test_quantile_is_the_nearest_rank(share: float, wanted: int) -> None:
    assert quantile(range(1, 101), share) == wanted


def test_quantile_of_nothing_is_not_a_number() -> None:
    assert math.isnan(quantile([], 0.5))


def test_latency_counts_from_the_due_time() -> None:
    samples = Samples()
    for number in range(10):
        index = samples.add_request(number * 1_000_000, number * 1_000_000 + 5_000_000)  # the generator was 5 ms late
        samples.add_answer(index, number * 1_000_000 + 6_000_000, Outcome.OK, None)
    run = summarize(samples, 1.0, slo_ms=5.5)
    assert run.p50_ms == 6.0
    assert run.delay_p99_ms == 5.0
    assert (run.ok, run.in_time, run.late) == (10, 0, 10)


def test_every_request_is_counted_once() -> None:
    samples = Samples(keep_every=2)
    for outcome in (*Outcome, Outcome.OK):
        index = samples.add_request(0, 0)
        if outcome != Outcome.UNANSWERED:
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
        self.on_answer(index, time.monotonic_ns(), Outcome.OK, None)


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
            self.on_answer(index, time.monotonic_ns(), Outcome.UNSENT, None)

    samples = Samples()
    asyncio.run(asyncio.wait_for(open_loop(InstantTarget(0), samples, [0, 1, 2]), 5))
    assert samples.outcomes == [Outcome.UNSENT] * 3
    assert asyncio.run(open_loop(InstantTarget(0), samples, [])) == 0.0


def run_search(search: CapacitySearch, capacity: float) -> list[float]:
    """Offer the rates of the search to a system that carries `capacity`."""
    rates: list[float] = []
    while (rate := search.next_rate()) is not None:
        rates.append(rate)
        search.observe(rate, 1.0 if rate <= capacity else 0.5)
    return rates


@pytest.mark.parametrize("first", [20.0, 90.0, 100.0, 250.0])
def test_the_search_closes_in_on_the_capacity(first: float) -> None:
    search = CapacitySearch(first)
    rates = run_search(search, 100.0)
    assert search.carried is not None
    assert 100.0 / PRECISION <= search.carried <= 100.0
    assert len(rates) < MAX_TRIALS


def test_the_search_forgives_one_failure_at_a_rate() -> None:
    search = CapacitySearch(50.0)
    search.observe(50.0, 0.9)
    assert search.next_rate() == 50.0
    search.observe(50.0, 1.0)
    assert search.carried == 50.0
    assert run_search(search, 100.0)
    assert 100.0 / PRECISION <= (search.carried or 0) <= 100.0


def test_the_search_ends_when_nothing_is_carried() -> None:
    search = CapacitySearch(1000.0)
    assert len(run_search(search, 0.0)) <= MAX_TRIALS
    assert search.carried is None


def test_the_search_ends_when_everything_is_carried() -> None:
    search = CapacitySearch(500.0, max_trials=9)
    rates = run_search(search, math.inf)
    assert search.carried == max(rates)
    assert search.failed is None


@pytest.mark.parametrize("limit", [3.0, 141.0, 500.0, 22_000.0])
def test_the_capacity_of_a_server_with_a_slope_is_found(limit: float) -> None:
    search = CapacitySearch(500, max_trials=60, growth=1.5, precision=1.02)
    while (rate := search.next_rate()) is not None:
        search.observe(rate, 1.0 if rate <= limit else max(0.0, 1 - (rate - limit) / limit))
    # 99% in time is kept up to one per cent past the limit
    assert search.carried is not None
    assert search.failed is not None
    assert limit * 0.97 <= search.carried <= limit * 1.01 < search.failed * 1.03


def test_a_disturbance_does_not_decide() -> None:
    for seed in range(20):
        draw, search = random.Random(seed), CapacitySearch(500, max_trials=60, growth=1.5)
        while (rate := search.next_rate()) is not None:
            attained = 1.0 if rate <= 1000 else max(0.0, 2 - rate / 1000)
            search.observe(rate, attained - 0.2 if draw.random() < 0.1 else attained)
        assert (search.carried or 0) >= 850


def test_the_confirmation_retreats_until_a_rate_is_carried() -> None:
    confirmation = Confirmation(100.0)
    rates = []
    while (rate := confirmation.next_rate()) is not None:
        rates.append(rate)
        confirmation.observe(1.0 if rate < 95 else 0.9)
    assert rates[0] == 100.0
    assert confirmation.confirmed == rates[-1] < 95


def test_the_confirmation_gives_up() -> None:
    confirmation = Confirmation(100.0, max_trials=3)
    for _ in range(3):
        assert confirmation.next_rate() is not None
        confirmation.observe(0.0)
    assert confirmation.next_rate() is None
    assert confirmation.confirmed is None


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
    assert samples.outcomes == [Outcome.OK, Outcome.REFUSED, Outcome.LATE, Outcome.FAILED]
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
    assert outcomes == [Outcome.OK, Outcome.UNSENT]
    assert asyncio.run(budgets(from_due=False)) == ([1000.0, 1000.0], [Outcome.OK, Outcome.OK])


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
