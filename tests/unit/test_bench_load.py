"""The pure parts of the benchmarks: schedules, quantiles, the capacity search, responses, checks of answers."""

from __future__ import annotations

import asyncio
import math
import random
import sys
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from bench.bars import Bar
from bench.dialect import DIALECTS
from bench.http import complete
from bench.loops import closed_loop, open_loop
from bench.memory import slope
from bench.prometheus import histogram
from bench.samples import Code, Samples, figures, quantile
from bench.schedule import poisson
from bench.search import capacity
from bench.workload import ROOT, Check, Inputs, named, numbers


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


@pytest.mark.parametrize(("rate", "seconds"), [(0, 1), (1, 0), (-1, 1)])
def test_poisson_says_what_it_wanted(rate: float, seconds: float) -> None:
    with pytest.raises(ValueError, match="wanted both above 0"):
        poisson(rate, seconds, 1)


@pytest.mark.parametrize(("q", "wanted"), [(0.5, 50), (0.99, 99), (0.999, 100), (0.0, 1), (1.0, 100)])
def test_quantile_is_the_nearest_rank(q: float, wanted: int) -> None:
    assert quantile(range(1, 101), q) == wanted


def test_quantile_of_nothing_is_not_a_number() -> None:
    assert math.isnan(quantile([], 0.5))


def test_latency_counts_from_the_intended_time() -> None:
    samples = Samples()
    for at in range(10):
        index = samples.sent(at * 1_000_000, at * 1_000_000 + 5_000_000)  # the generator was 5 ms late
        samples.done(index, at * 1_000_000 + 6_000_000, Code.OK, None)
    run = figures(samples, 1.0, slo_ms=5.5)
    assert run.p50_ms == 6.0
    assert run.lateness_p99_ms == 5.0
    assert (run.ok, run.in_slo, run.late) == (10, 0, 10)


def test_every_request_is_counted_once() -> None:
    samples = Samples(keep_every=2)
    for code in (Code.OK, Code.REFUSED, Code.LATE, Code.FAILED, Code.SILENT, Code.OK):
        index = samples.sent(0, 0)
        if code != Code.SILENT:
            samples.done(index, 1_000_000, code, code.name)
    run = figures(samples, 2.0, slo_ms=10)
    assert (run.in_slo, run.refused, run.late, run.failed, run.silent) == (2, 1, 1, 1, 1)
    assert run.in_slo + run.refused + run.late + run.failed + run.silent == run.sent
    assert run.goodput_s == 1.0
    assert samples.open == 1
    assert samples.kept == {0: "OK"}


def queue_server(limit: float, noise: float = 0.0, seed: int = 1):  # type: ignore[no-untyped-def]
    """In time up to `limit`, falling off past it; one of ten measurements is spoilt by `noise`."""
    draw = random.Random(seed)

    def attained(rate: float) -> float:
        clean = 1.0 if rate <= limit else max(0.0, 1 - (rate - limit) / limit)
        return clean - noise if draw.random() < 0.1 else clean

    return attained


@pytest.mark.parametrize("limit", [3.0, 141.0, 500.0, 22_000.0])
def test_capacity_is_found_from_below_and_from_above(limit: float) -> None:
    found = capacity(queue_server(limit), 500, tolerance=0.02, trials=60)
    # 99% in time is kept up to one per cent past the limit
    assert limit * 0.97 <= found.rate <= limit * 1.01
    assert found.ceiling > found.rate


def test_a_hiccup_does_not_decide() -> None:
    for seed in range(20):
        found = capacity(queue_server(1000, noise=0.2, seed=seed), 500, trials=60)
        assert found.rate >= 850


def test_the_search_ends_with_a_server_that_does_nothing_and_with_one_that_does_everything() -> None:
    nothing = capacity(lambda rate: 0.0, 500, trials=9)
    assert (nothing.rate, len(nothing.trials)) == (0.0, 9)
    everything = capacity(lambda rate: 1.0, 500, trials=9)
    assert everything.rate == max(trial.rate for trial in everything.trials)
    assert everything.ceiling == 0.0


BODY = b'{"y": [1.5]}'


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n" + BODY,
        b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\nServer: x\r\n\r\n" + BODY,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n"
        + BODY[:5]
        + b"\r\n7\r\n"
        + BODY[5:]
        + b"\r\n0\r\n\r\n",
    ],
)
def test_responses_are_complete_when_their_last_byte_is_there(response: bytes) -> None:
    for size in range(len(response)):
        assert complete(response[:size]) is None
    whole = complete(response)
    assert whole is not None
    assert whole[1] == BODY
    assert numbers(whole[1]) == [1.5]


def test_what_is_no_response_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"wanted HTTP/1.1"):
        complete(b"SSH-2.0-x\r\n\r\n")
    with pytest.raises(ValueError, match="neither"):
        complete(b"HTTP/1.1 200 OK\r\n\r\n")


def test_inputs_are_distinct_and_the_check_sees_a_neighbours_answer() -> None:
    scenario = named("noop")
    inputs = Inputs(scenario)
    check = Check(scenario, inputs)
    raws = {inputs.raw(index) for index in (0, 1, 2, 1 << 20, (1 << 20) + 1)}
    inputs.renew()
    raws |= {inputs.raw(index) for index in (0, 1, 2)}
    assert len(raws) == 8
    assert np.array_equal(np.frombuffer(inputs.raw(5), "<f4").reshape(1, 16), inputs.array(5))
    right = {index: inputs.array(index).sum() for index in (0, 32, (1 << 20) + 64)}
    assert check.wrong(right) == (3, 0)
    assert check.wrong({**right, 32: inputs.array(33).sum()}) == (3, 1)


@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_every_dialect_says_how_long_its_body_is(name: str) -> None:
    scenario = named("noop")
    inputs = Inputs(scenario)
    for index in (0, 12_345):
        request = DIALECTS[name](scenario, inputs, "localhost:1", "/path").request(index)
        head, body = request.split(b"\r\n\r\n", 1)
        assert int(head.split(b"Content-Length: ")[-1].split(b"\r\n")[0]) == len(body)


def test_every_scenario_can_be_read() -> None:
    for path in sorted((ROOT / "benchmarks/scenarios").glob("*.toml")):
        assert named(path.stem).slo_ms > 0


class Fake:
    """Answers after `delay_s`, in the order asked."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        self.most = self.now = 0

    async def start(self, clients: int, done) -> None:  # type: ignore[no-untyped-def]
        self.done = done

    def send(self, index: int) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        asyncio.get_running_loop().call_later(self.delay_s, self.answer, index)

    def answer(self, index: int) -> None:
        self.now -= 1
        self.done(index, time.monotonic_ns(), Code.OK, None)


def test_the_closed_loop_keeps_exactly_so_many_open() -> None:
    fake, samples = Fake(0.001), Samples()
    seconds = asyncio.run(closed_loop(fake, samples, 7, 0.1))  # type: ignore[arg-type]
    assert fake.most == 7
    assert fake.now == samples.open == 0
    assert seconds >= 0.1


def test_the_open_loop_sends_all_and_never_early() -> None:
    fake, samples, arrivals = Fake(0.05), Samples(), poisson(2000, 0.1, 1)
    asyncio.run(open_loop(fake, samples, arrivals))  # type: ignore[arg-type]
    assert len(samples.codes) == len(arrivals)
    assert samples.open == 0
    assert fake.most > 7  # a slow server does not slow the schedule
    assert samples.lateness_ns()[0] >= 0
    assert np.diff(samples.intended_ns).tolist() == np.diff(arrivals).tolist()


def test_a_slope_is_per_minute() -> None:
    assert slope([(float(at), 100 + at * 0.1) for at in range(60)]) == pytest.approx(6.0)
    assert slope([(0.0, 1.0)]) == 0.0


PAGE = """# TYPE horologe_start_error_seconds histogram
horologe_start_error_seconds_bucket{le="0.0001"} 90.0
horologe_start_error_seconds_bucket{le="0.0005"} 99.0
horologe_start_error_seconds_bucket{le="+Inf"} 100.0
horologe_start_error_seconds_count 100.0
other_bucket{model="a",le="0.1"} 7.0
"""


def test_histograms_are_summed_over_pages_and_never_flatter() -> None:
    found = histogram([PAGE, PAGE], "horologe_start_error_seconds")
    assert found.total == 200
    assert found.quantile(0.5) == 0.0001
    assert found.quantile(0.99) == 0.0005
    assert found.quantile(0.999) == math.inf
    assert found.since(found).total == 0
    assert math.isnan(histogram([], "x").quantile(0.5))
    assert histogram([PAGE], "other").total == 7


def test_a_bar_that_was_not_measured_does_not_hold() -> None:
    assert Bar("a", "fused", 1.0, "<=", 1.0).holds
    assert not Bar("a", "fused", 0.9, ">=", 1.0).holds
    assert not Bar("a", "fused", math.nan, "<=", 1.0).holds
