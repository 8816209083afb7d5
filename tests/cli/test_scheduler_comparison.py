"""`horologe sim` with requests of a user: every scheduler side by side, the bound, and errors that name the line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from cli.sim_command import sim
from horologe_common.clock import ms, s
from horologe_load.arrivals import read_counts
from horologe_sim.comparison.played_load import learn_distributions
from horologe_sim.comparison.request_file import FileRequest, read_requests
from horologe_sim.comparison.scheduler_comparison import SchedulerComparison, SchedulerResult

if TYPE_CHECKING:
    from pathlib import Path


def compared(*arguments: str) -> dict[str, Any]:
    result = sim(*arguments, "--json")
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def a_trace(path: Path, count: int = 300, seconds: float = 1.0) -> Path:
    """Write requests for two catalogue models and for one whose time depends on the input."""
    rng = np.random.default_rng(1)
    lines = ["model, seconds, length, exec_ms, slo_ms, application"]
    for at_s in rng.random(count) * seconds:
        if rng.random() < 0.3:
            length = int(rng.integers(8, 64))
            lines.append(f"encoder, {at_s:.6f}, {length}, {length / 8 + rng.random():.3f}, 60, chat")
        else:
            lines.append(f"{rng.choice(['resnet50_v1', 'densenet121'])}, {at_s:.6f}, , , 50,")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_one_command_shows_what_each_scheduler_serves_and_how_far_it_is_from_the_bound(tmp_path: Path) -> None:
    trace = a_trace(tmp_path / "mine.csv")
    document = compared("--requests", str(trace), "--scheduler", "horologe,edf,clockwork", "--devices", "2")
    assert document["requests"] == 300
    assert document["devices"] == 2
    assert [row["scheduler"] for row in document["results"]] == ["horologe", "edf", "clockwork"]
    for row in document["results"]:
        assert 0 < row["attainment"] <= document["bound"] + 1e-6
        assert 0 < row["utilisation"] < 1
        assert row["of_bound"] == pytest.approx(row["attainment"] / document["bound"], abs=1e-3)
    assert document == compared("--requests", str(trace), "--scheduler", "horologe,edf,clockwork", "--devices", "2")
    text = sim("--requests", str(trace), "--scheduler", "horologe,edf").stdout
    assert "the default (horologe) serves" in text
    assert "bound: " in text
    text = sim("--requests", str(trace), "--scheduler", "edf,clockwork").stdout
    assert "serves most" in text
    assert "the default was not played" in text


def a_result(scheduler: str, attainment: float, error: float) -> SchedulerResult:
    ahead = round(attainment - 0.9, 5)
    return SchedulerResult(
        scheduler, attainment, None, 90.0, 0.5, 0.1, 0.0, 5.0, 9.0, "m", 0.8, ahead=ahead, ahead_error=error
    )


def test_a_lead_over_the_default_counts_if_it_is_more_than_noise() -> None:
    results = a_result("horologe", 0.9, 0.0), a_result("edf", 0.95, 0.01), a_result("nexus", 0.97, 0.04)
    verdict = SchedulerComparison("mine", 1, 10.0, 2, 1000, None, results).verdict
    assert verdict.endswith('edf serves 5.00% more (+-2.00%): consider controller.scheduler = "edf"')
    verdict = SchedulerComparison("mine", 1, 10.0, 2, 1000, None, (results[0], results[2])).verdict
    assert verdict == "the default (horologe) serves 90.00% in time; no scheduler serves clearly more"


def test_all_schedulers_are_compared_if_none_is_named(tmp_path: Path) -> None:
    document = compared("--requests", str(a_trace(tmp_path / "mine.csv", 60)))
    assert {"horologe", "clockwork", "orloj", "edf"} <= {row["scheduler"] for row in document["results"]}


def test_a_scenario_names_catalogue_models_and_its_own_requests(tmp_path: Path) -> None:
    a_trace(tmp_path / "mine.csv", 100)
    (tmp_path / "mine.toml").write_text(
        'requests = "mine.csv"\nworkers = 3\n[[models]]\nname = "resnet50_v1"\nslo = "40ms"\n'
        '[[models]]\nname = "densenet121"\n[[models]]\nname = "encoder"\nbase_ms = 0.5\nslo = "50ms"\n'
    )
    document = compared(str(tmp_path / "mine.toml"), "--scheduler", "horologe")
    assert (document["devices"], document["requests"]) == (3, 100)


def test_the_last_request_of_the_file_is_played(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("seconds,model,slo_ms\n0.1,resnet50_v1,100\n")
    (result,) = compared("--requests", str(tmp_path / "mine.csv"), "--scheduler", "horologe")["results"]
    assert (result["attainment"], result["of_bound"]) == (1.0, 1.0)


def test_requests_with_long_slos_are_played_to_their_end(tmp_path: Path) -> None:
    """Eight requests of 0.5 s, all at once, with 10 s: the devices are busy for longer than the file."""
    lines = [f"{number / 1000},slow,500,10000" for number in range(8)]
    (tmp_path / "mine.csv").write_text("\n".join(["seconds,model,exec_ms,slo_ms", *lines]) + "\n")
    for result in compared("--requests", str(tmp_path / "mine.csv"), "--scheduler", "horologe,edf")["results"]:
        assert (result["attainment"], result["refused"], result["late"]) == (1.0, 0.0, 0.0)
        assert result["p99_ms"] > 1000
        assert 0 < result["utilisation"] <= 1


def test_the_file_may_give_the_times_of_each_copy_of_a_model(tmp_path: Path) -> None:
    lines = [f"{number / 100},encoder-{number % 2},{2 + number % 2}" for number in range(50)]
    (tmp_path / "mine.csv").write_text("\n".join(["seconds,model,exec_ms", *lines]) + "\n")
    (tmp_path / "mine.toml").write_text(
        'requests = "mine.csv"\n[[models]]\nname = "encoder"\ncount = 2\nslo = "50ms"\n'
    )
    (result,) = compared(str(tmp_path / "mine.toml"), "--scheduler", "horologe")["results"]
    assert result["attainment"] == 1.0


def test_a_request_without_an_slo_has_that_of_its_model_or_of_the_scenario(tmp_path: Path) -> None:
    lines = [f"{number / 100},{name}" for number in range(50) for name in ("resnet50_v1", "densenet121")]
    (tmp_path / "mine.csv").write_text("\n".join(["seconds,model", *lines]) + "\n")
    (tmp_path / "mine.toml").write_text(
        'requests = "mine.csv"\nslo = "1ms"\n[[models]]\nname = "resnet50_v1"\nslo = "50ms"\n'
        '[[models]]\nname = "densenet121"\n'
    )
    (result,) = compared(str(tmp_path / "mine.toml"), "--scheduler", "horologe")["results"]
    assert (result["attainment"], result["refused"]) == (0.5, 0.5)


def test_the_load_of_a_scenario_is_compared_too(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'duration = "1s"\n[[models]]\nname = "resnet50_v1"\ncount = 2\nslo = "50ms"\n[[load]]\nrate = 200\n'
    )
    document = compared(str(tmp_path / "mine.toml"), "--scheduler", "horologe,clockwork")
    assert document["requests"] == pytest.approx(200, rel=0.3)
    assert document["results"][0]["attainment"] > 0.95


def test_counts_may_be_per_minute(tmp_path: Path) -> None:
    counts = tmp_path / "counts.csv"
    counts.write_text("minute,count,model\n0,60,a\n2,30,a\n")
    (times,) = read_counts(counts).values()
    assert sum(at_ns < s(60) for at_ns in times) == 60
    assert sum(s(120) <= at_ns < s(180) for at_ns in times) == 30
    counts.write_text("second,count\n1,5\n")
    assert all(s(1) <= at_ns < s(2) for at_ns in read_counts(counts)[""])


def test_lengths_are_learned_in_ranges(tmp_path: Path) -> None:
    requests = [FileRequest(0, "m", "chat", length, ms(length)) for length in range(10, 110)]
    known = learn_distributions(ms(1), requests)
    short, long = (known.kind_of("chat", length) for length in (10, 100))
    assert known.parts[short].solo.mean_ns < ms(20)
    assert known.parts[long].solo.mean_ns > ms(80)
    file = tmp_path / "mine.csv"
    file.write_text("seconds,rows\n0.5,2\n0.25,\n")
    assert [(request.at_ns, request.rows) for request in read_requests(file).requests] == [(s(0.25), 1), (s(0.5), 2)]
