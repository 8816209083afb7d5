"""Pure parts of the benchmarks: responses, inputs, checks of answers, histograms, bars."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from bench.dialects import DIALECTS
from bench.http_target import parse_response
from bench.report import Bar
from bench.server_metrics import memory_slope, parse_histogram
from bench.workload import ROOT, AnswerCheck, Inputs, load_scenario, parse_numbers

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
    assert Bar("a", "fused", 1.0, "<=", 1.0).holds
    assert not Bar("a", "fused", 0.9, ">=", 1.0).holds
    assert not Bar("a", "fused", math.nan, "<=", 1.0).holds
