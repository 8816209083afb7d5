"""Pure parts of the benchmarks: responses, inputs, checks of answers, histograms, bars."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from bench.dialects import DIALECTS
from bench.measurements import Load, Measurements, goodput, throughput
from bench.parts.bench_run import dynamic_bars
from bench.parts.learned import CLIENTS, FACTORS, goodput_bars, throughput_bars
from bench.parts.yardsticks import cnn_bars
from bench.report import Bar
from bench.server_metrics import memory_slope, parse_histogram, sum_by_label
from bench.systems import DEFAULT, NO_PROFILER
from bench.workload import ROOT, AnswerCheck, Inputs, load_scenario, parse_numbers
from horologe_load.http_target import parse_response
from horologe_load.samples import LoadSummary

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
        assert parse_response(response[:size]) is None
    whole = parse_response(response)
    assert whole is not None
    assert whole[1] == BODY
    assert parse_numbers(whole[1]) == [1.5]


def test_data_that_is_no_response_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"wanted HTTP/1.1"):
        parse_response(b"SSH-2.0-x\r\n\r\n")
    with pytest.raises(ValueError, match="neither"):
        parse_response(b"HTTP/1.1 200 OK\r\n\r\n")


def test_inputs_are_distinct_and_the_check_detects_a_swapped_answer() -> None:
    scenario = load_scenario("noop")
    inputs = Inputs(scenario)
    check = AnswerCheck(scenario, inputs)
    raws = {inputs.raw(index) for index in (0, 1, 2, 1 << 20, (1 << 20) + 1)}
    inputs.start_epoch()
    raws |= {inputs.raw(index) for index in (0, 1, 2)}
    assert len(raws) == 8
    assert np.array_equal(np.frombuffer(inputs.raw(5), "<f4").reshape(1, 16), inputs.array(5))
    right = {index: inputs.array(index).sum() for index in (0, 32, (1 << 20) + 64)}
    assert check.count_wrong(right) == (3, 0)
    assert check.count_wrong({**right, 32: inputs.array(33).sum()}) == (3, 1)


@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_every_dialect_states_the_length_of_its_body(name: str) -> None:
    scenario = load_scenario("noop")
    inputs = Inputs(scenario)
    for index in (0, 12_345):
        request = DIALECTS[name](scenario, inputs, "localhost:1", "/path").request(index)
        head, body = request.split(b"\r\n\r\n", 1)
        assert int(head.split(b"Content-Length: ")[-1].split(b"\r\n")[0]) == len(body)


def test_every_scenario_can_be_read() -> None:
    for path in sorted((ROOT / "benchmarks/scenarios").glob("*.toml")):
        assert load_scenario(path.stem).slo_ms > 0


def test_a_slope_is_per_minute() -> None:
    assert memory_slope([(float(at), 100 + at * 0.1) for at in range(60)]) == pytest.approx(6.0)
    assert memory_slope([(0.0, 1.0)]) == 0.0


PAGE = """# TYPE horologe_start_error_seconds histogram
horologe_start_error_seconds_bucket{le="0.0001"} 90.0
horologe_start_error_seconds_bucket{le="0.0005"} 99.0
horologe_start_error_seconds_bucket{le="+Inf"} 100.0
horologe_start_error_seconds_count 100.0
other_bucket{model="a",le="0.1"} 7.0
"""


def test_histograms_are_summed_over_pages_and_quantiles_are_never_too_low() -> None:
    histogram = parse_histogram([PAGE, PAGE], "horologe_start_error_seconds")
    assert histogram.total == 200
    assert histogram.quantile(0.5) == 0.0001
    assert histogram.quantile(0.99) == 0.0005
    assert histogram.quantile(0.999) == math.inf
    assert histogram.since(histogram).total == 0
    assert math.isnan(parse_histogram([], "x").quantile(0.5))
    assert parse_histogram([PAGE], "other").total == 7


def test_a_bar_that_was_not_measured_does_not_hold() -> None:
    assert Bar("a", 1.0, "<=", 1.0).holds
    assert not Bar("a", 0.9, ">=", 1.0).holds
    assert not Bar("a", math.nan, "<=", 1.0).holds
    assert Bar("only reported", math.nan).holds


def a_run(rate: float) -> LoadSummary:
    return LoadSummary(rate=0, seconds=1, slo_ms=0, sent=round(rate), ok=round(rate), in_time=round(rate))


def test_ratios_are_medians_over_rounds_that_were_measured_in_turn() -> None:
    log, load = Measurements(), Load("throughput", "noop", "sdk", "64")
    for ours, beside in ((100, 100), (900, 1000), (40, 80)):
        log.add(load, "a", a_run(ours))
        log.add(load, "b", a_run(beside))
    assert log.ratio(load, "a", "b", throughput) == pytest.approx(0.9)
    assert log.median(load, "a", goodput) == 100
    assert math.isnan(log.ratio(load, "a", "c", throughput))
    log.add(load, "c", a_run(0))
    assert math.isnan(log.ratio(load, "a", "c", throughput)), "a side without answers is not beaten"


def test_a_profiler_that_costs_more_than_a_twentieth_at_one_load_fails_the_bar_of_the_model() -> None:
    log = Measurements()
    for clients in CLIENTS:
        for interface in ("sdk", "json"):
            load = Load("throughput", "noop", interface, str(clients))
            log.add(load, NO_PROFILER, a_run(1000))
            log.add(load, DEFAULT, a_run(940 if (interface, clients) == ("json", 16) else 1000))
    holds = {bar.name: bar.holds for bar in throughput_bars(log) if not math.isnan(bar.value)}
    assert holds == {
        "noop, sdk: throughput, of no-profiler's": True,
        "noop, json: throughput, of no-profiler's": False,
    }


def test_goodput_must_not_fall_with_the_load() -> None:
    log = Measurements()
    for factor in FACTORS:
        for side in (DEFAULT, NO_PROFILER):
            log.add(Load("goodput", "noop", "sdk", f"{factor:g}x"), side, a_run(900 if factor == 4 else 1000))
    holds = {bar.name: bar.holds for bar in goodput_bars(log) if bar.name.startswith("noop")}
    assert holds == {
        "noop: goodput at 1x to 4x, of no-profiler's": True,
        "noop: least goodput at 1x to 4x, of the greatest": False,
    }


def test_the_cnn_is_compared_with_the_better_of_the_peers_batch_limits() -> None:
    log = Measurements()
    for factor in FACTORS:
        log.add(Load("cnn", "cnn-10ms", "sdk", f"{factor:g}x"), DEFAULT, a_run(125))
    capacity, above, flat = cnn_bars(log, {DEFAULT: 110, "mosec:4": 90, "mosec:16": 100})
    assert [capacity.value, above.value, flat.value] == pytest.approx([1.1, 1.25, 1])


def test_a_static_model_that_was_declared_dynamic_fails_and_the_text_encoder_must_be() -> None:
    learned = {"noop/1": True, "text-encoder/1": True}
    wrong, detected = dynamic_bars({DEFAULT: learned, NO_PROFILER: {"noop/1": False}, "before": None})
    assert (wrong.holds, wrong.detail, detected.holds) == (False, "noop/1", True)
    assert [bar.holds for bar in dynamic_bars({DEFAULT: {"noop/1": False, "text-encoder/1": False}})] == [True, False]


def test_metrics_are_summed_by_label_over_all_pages() -> None:
    page = 'actions_total{action="load",status="OK"} 2.0\nactions_total{action="infer",status="OK"} 5.0\n'
    assert sum_by_label([page, page], "actions_total", "action") == {"load": 4, "infer": 10}
