"""`horologe bench`: the search for the capacity of a simulated server, reports, exit codes, wrong options."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from bench.known_server import SimulatedProcesses
from harness.command_line import run_horologe
from horologe_cli.commands.measuring.bench import is_met
from horologe_cli.measuring.bench_report import bench_document, bench_text
from horologe_cli.measuring.bench_run import Bench, BenchLoad, BenchResult, evaluate
from horologe_load.load_processes import LoadRun
from horologe_load.model_server import ModelServer
from horologe_load.samples import ClientOutcome, Samples

if TYPE_CHECKING:
    from horologe_load.load_processes import LoadProcesses

SLOTS, DELAY_NS = 16, 50_000_000
CAPACITY = SLOTS / DELAY_NS * 1e9
SERVER = ModelServer("http://known:8000", "known")


def bench(load: BenchLoad) -> Bench:
    processes = SimulatedProcesses(SLOTS, DELAY_NS)
    return Bench(cast("LoadProcesses", processes), load, lambda text, share: None)


def samples_of(latency_ms: float, late_by_ms: float = 0.0, count: int = 1000) -> Samples:
    """Return requests that left `late_by_ms` after their planned time."""
    samples = Samples()
    for number in range(count):
        due_ns = number * 1_000_000
        index = samples.add_request(due_ns, due_ns + round(late_by_ms * 1e6))
        samples.add_answer(index, due_ns + round(latency_ms * 1e6), ClientOutcome.OK, None)
    return samples


def test_the_capacity_of_a_known_server_is_found() -> None:
    load = BenchLoad(seconds=10.0, slo_ms=100.0, even=True)
    result = bench(load).search()
    assert result.capacity == pytest.approx(CAPACITY, rel=0.02)
    assert result.failed == pytest.approx(CAPACITY, rel=0.02)
    assert is_met(result, None, capacity=True)
    assert "capacity        3" in bench_text(result, SERVER, load)
    document = json.loads(json.dumps(bench_document(result, SERVER, load, met=True)))
    assert document["run"]["summary"]["attained"] >= 0.99
    assert len(document["trials"]) == len(result.trials)


def test_the_latency_of_a_known_server_is_found() -> None:
    result = bench(BenchLoad(seconds=10.0, slo_ms=100.0, rate=0.3 * CAPACITY)).run()
    assert result.run is not None
    assert result.run.latency_ms["p50"].value == pytest.approx(50.0)
    assert result.run.attainment.value == 1.0
    assert result.run.limits == result.limits == []


def test_the_histogram_has_the_latencies_in_microseconds() -> None:
    histogram = pytest.importorskip("hdrh.histogram").HdrHistogram
    run = evaluate(LoadRun(samples_of(20.0), 1.0, (0.1,)), 0.0, 1000.0)
    decoded = histogram.decode(run.hdr_histogram)
    assert decoded.get_total_count() == 1000
    assert decoded.get_value_at_percentile(50) == pytest.approx(20_000, rel=1e-3)


def test_a_server_that_never_meets_the_slo_has_no_capacity() -> None:
    load = BenchLoad(seconds=1.0, slo_ms=20.0)
    result = bench(load).search()
    assert result.run is None
    assert not is_met(result, None, capacity=True)
    assert "capacity        none" in bench_text(result, SERVER, load)


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (LoadRun(samples_of(20.0, late_by_ms=5.0), 1.0, (0.5,)), "requests left 5.0 ms after their planned time"),
        (LoadRun(samples_of(20.0), 1.0, (0.2, 0.97)), "a generator process used 97% of a core"),
        (LoadRun(samples_of(20.0), 1.0, (0.2,), held_back=3), "3 requests waited for one of the generator's"),
    ],
)
def test_a_generator_that_was_the_limit_is_named(run: LoadRun, reason: str) -> None:
    result = BenchResult(evaluate(run, 0.0, 1000.0))
    assert len(result.limits) == 1
    assert reason in result.limits[0]
    assert "The generator was the limit" in bench_text(result, SERVER, BenchLoad(1.0, rate=1000.0))


def test_attainment_decides_the_exit_code() -> None:
    samples = samples_of(20.0)
    samples.outcomes[:20] = [ClientOutcome.REFUSED] * 20
    samples.reasons = Counter({"no capacity": 20})
    result = BenchResult(evaluate(LoadRun(samples, 1.0, (0.1,)), 50.0, 1000.0))
    assert is_met(result, 0.98, capacity=False)
    assert not is_met(result, 0.99, capacity=False)
    text = bench_text(result, SERVER, BenchLoad(1.0, slo_ms=50.0, rate=1000.0))
    assert "98.00%" in text
    assert "20 refused" in text
    assert "20 x no capacity" in text


def test_a_run_without_an_answer_has_no_percentiles() -> None:
    samples = Samples()
    samples.add_request(0, 0)
    result = BenchResult(evaluate(LoadRun(samples, 1.0, (0.1,)), 50.0, 1.0))
    assert not is_met(result, None, capacity=False)
    assert "latency" not in bench_text(result, SERVER, BenchLoad(1.0, rate=1.0))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--rate", "1", "--clients", "2"), "--clients, --rate: got 2 loads"),
        (("--arrivals", "even"), "--arrivals: got 'even'"),
        (("--capacity",), "--slo-ms: got none"),
        (("--slo-ms", "0.01"), "--slo-ms: got 0.01, wanted at least 0.1"),
        (("--shape", "x"), "--shape: got 'x', wanted NAME=VALUE"),
        (("--shape", "x=1,n"), "--shape x: got '1,n'"),
        (("--trace", "trace.csv"), "got other, wanted lines of 'm'"),
        (("--trace", "none.csv"), "none.csv: No such file"),
    ],
)
def test_wrong_options_are_usage_errors(options: tuple[str, ...], words: str, tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("0.1,other\n")
    result = run_horologe("bench", "m", *options, cwd=tmp_path)
    assert result.exit_code == 2
    assert words in result.stderr


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "grpc://127.0.0.1:9"])
def test_a_server_that_cannot_be_reached(endpoint: str) -> None:
    result = run_horologe("bench", "m", "-e", endpoint)
    assert result.exit_code == 3
    assert f"no answer from {endpoint}" in result.stderr
