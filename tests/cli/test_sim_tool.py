"""`horologe sim`: scenarios from options, the fewest devices, a timeline."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from cli.sim_command import sim
from harness.model_folders import an_emulated_model
from horologe_common.clock import ms
from horologe_sim.scenario.command_line_scenario import measured_models

if TYPE_CHECKING:
    from pathlib import Path

FAILED = 1
SHORT = ["--duration", "500ms", "--noise", "none"]


def test_a_scenario_from_models_and_a_rate() -> None:
    report = json.loads(sim("--model", "resnet50_v1*3", "--rate", "300", "--slo", "50ms", "--json", *SHORT).stdout)
    assert report["total"]["ok"] == report["total"]["sent"] > 50
    assert report["attainment"] == 1
    assert 0 < report["utilisation"] < 1
    assert len(report["workers"]) == 1
    assert "attainment 100.000%" in sim("--model", "resnet50_v1", "--rate", "100", "--devices", "2", *SHORT).stdout


def test_every_line_of_a_trace_is_a_request(tmp_path: Path) -> None:
    trace = tmp_path / "arrivals.csv"
    trace.write_text("0.1,resnet18_v1\n0.2,resnet50_v1\n0.2,resnet50_v1\n")
    options = ["--model", "resnet18_v1", "--model", "resnet50_v1", "--trace", str(trace), "--json"]
    report = json.loads(sim(*options).stdout)
    assert {name: row["sent"] for name, row in report["models"].items()} == {"resnet18_v1": 1, "resnet50_v1": 2}


def test_the_fewest_devices_reach_the_target_and_one_less_does_not() -> None:
    options = ["--model", "resnet50_v1*4", "--rate", "1800", "--slo", "40ms", "--find-devices", "99", "--json", *SHORT]
    size = json.loads(sim(*options).stdout)
    attained = {probe["devices"]: probe["attainment"] for probe in size["probes"]}
    assert attained[size["devices"]] >= 0.99
    assert size["devices"] > 1
    assert attained[size["devices"] - 1] < 0.99


def test_an_unreachable_target_is_an_error() -> None:
    result = sim("--model", "resnet50_v1", "--rate", "100", "--slo", "2ms", "--find-devices", "99", *SHORT)
    assert result.exit_code == FAILED
    assert "99.000%" in result.stderr


def test_a_timeline_has_every_action_predicted_and_actual(tmp_path: Path) -> None:
    file = tmp_path / "timeline.json"
    options = ["--model", "resnet50_v1*2", "--rate", "200", "--json", "--trace-out", str(file), *SHORT]
    report = json.loads(sim(*options).stdout)
    events = [event for event in json.loads(file.read_text())["traceEvents"] if event["ph"] == "X"]
    execs = [event for event in events if event["cat"] == "infer"]
    batches = sum(worker["batches"] for worker in report["workers"].values())
    assert len(execs) == 2 * batches
    assert all(event["dur"] > 0 for event in events)
    assert all(abs(event["args"]["late_ms"]) < 1 for event in execs)


def test_own_models_with_the_times_measured_here_and_counts_per_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOROLOGE_WORKER_CACHE", str(tmp_path / "cache"))
    an_emulated_model(tmp_path / "models", slo='"80ms"')
    an_emulated_model(tmp_path / "models", "other")
    counts = tmp_path / "counts.csv"
    counts.write_text("0,30,pretend\n1,10,pretend\n1,5,other\n")
    result = sim("--models", str(tmp_path / "models"), "--counts", str(counts), "--json")
    assert result.exit_code == 0, result.output
    models = json.loads(result.stdout)["models"]
    assert {name: (row["sent"], row["ok"]) for name, row in models.items()} == {"pretend": (40, 40), "other": (5, 5)}
    assert "wanted a folder of models" in sim("--models", str(tmp_path / "nowhere"), "--rate", "5").stderr
    (tmp_path / "empty").mkdir()
    assert "got no models" in sim("--models", str(tmp_path / "empty"), "--rate", "5").stderr


def test_the_latest_version_of_an_own_model_is_simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROLOGE_WORKER_CACHE", str(tmp_path / "cache"))
    first = an_emulated_model(tmp_path / "models", slo='"9ms"')
    first.rename(first.with_name("9"))
    an_emulated_model(tmp_path / "models", slo='"10ms"').rename(first.with_name("10"))
    [entry] = measured_models(tmp_path / "models", ms(100), override=False)
    assert entry.slo_ns == ms(10)
