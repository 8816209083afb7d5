"""Experiments on real processes: their output has the documented form. Tests do not check the bars."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from experiments.run_experiment import run_experiment

if TYPE_CHECKING:
    from pathlib import Path

PATIENT = """[
  {name="emulated", slo="20s", rate=100, skew=1.0, pages=14, emulated=[
    {name="resnet50", count=2, exec_ms={1=2.77, 2=3.95}, load_ms=8.33, weights_mb=102.1}]},
  {name="onnx", slo="20s", rate=50, skew=1.0, pages=2, folders=["digits-linear"], width=64},
]"""
"""The sources of the scene of fig9, smaller and with an SLO that a busy machine can keep."""


def test_dynamic_gives_every_side_the_same_arrivals(tmp_path: Path) -> None:
    changes = ("slo_multiple=30", "seconds=1.5", "window_s=0.5", "probes=1", "lengths=[4,512]", "learn_s=1")
    _, found = run_experiment("dynamic", *changes, folder=tmp_path)
    assert list(found) == ["experiment", "rows", "bars"]
    assert [row["side"] for row in found["rows"]] == ["clockwork", "horologe", "horologe, after learning"]
    for row in found["rows"]:
        assert 0 <= row["finished"] <= 1
        assert abs(row["finished"] + row["refused"] + row["late"] - 1) < 1e-3
        assert {"chat", "document", "p50_ms", "p99_ms", "batch", "settled_s"} < set(row)
    assert [bar["name"] for bar in found["bars"]] == [
        "finish rate of horologe, beside that of clockwork, at least",
        "finish rate of horologe, after learning, beside that of clockwork, at least",
        "finish rate of horologe, after learning, at least",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dynamic.json", "dynamic.md", "dynamic.png"]
    series = json.loads((tmp_path / "dynamic.json").read_text())["series"]
    assert [row["length"] for row in series["Alone"]] == [4, 512]
    assert [begin_s for begin_s, _ in series["windows"]["horologe"]] == [0, 0.5, 1]


def test_fig9_has_errors_of_actions_by_source_action_and_side(tmp_path: Path) -> None:
    _, found = run_experiment("fig9", f"sources={PATIENT}", "seconds=1.5", "warmup_s=0.5", folder=tmp_path)
    infers = [row for row in found["rows"] if row["action"] == "INFER"]
    for source in ("emulated", "onnx"):
        counts = {
            error: sum(row["count"] for row in infers if (row["source"], row["error"]) == (source, error))
            for error in ("start", "prediction", "completion")
        }
        assert counts["start"] == counts["prediction"] == counts["completion"] > 0
    assert all(0 <= row["p50_us"] <= row["max_us"] for row in found["rows"] if row["p50_us"] is not None)
    assert all(row["p99.9_us"] is None for row in found["rows"]), "so few values have no p99.9"
    (bar,) = found["bars"]
    assert (bar["name"], bar["bar"]) == ("emulated INFER start error, p99 in us, at most", 500)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fig9.json", "fig9.md", "fig9.png"]


def test_live_has_the_same_arrivals_live_and_simulated() -> None:
    _, found = run_experiment("live", "loads=[0.5]", 'slo="10s"', "seconds=1.5", "warmup_s=0.5", "probes=5")
    (row,) = found["rows"]
    assert row["load"] == 0.5
    assert min(row["live_goodput"], row["sim_goodput"], row["live_p50_ms"], row["sim_p50_ms"]) > 0
    assert [bar["bar"] for bar in found["bars"]][:2] == [0.02, 0.05]


def test_a_workload_of_the_tournament_runs_live_and_simulated() -> None:
    _, found = run_experiment("live-tournament", "requests=150", "models=3", "time_factor=1")
    (row,) = found["rows"]
    assert row["other"] == "edf"
    assert row["simulated, horologe"] > 0
    assert {"live, horologe", "live, other", "same order"} <= row.keys()


def test_the_estimator_runs_beside_a_live_run() -> None:
    traffic = 'traffic=[{pipeline="cascade", rate=20, cv=1}]'
    _, found = run_experiment("inferline-live", traffic, "seconds=2", "warmup_s=0.5", "plan_seconds=10")
    (row,) = found["rows"]
    assert min(row["live_p99_ms"], row["estimated_p99_ms"]) > 0
    assert row["live_attainment"] > 0
    assert [bar["bar"] for bar in found["bars"]] == [0.1]


def test_the_workloads_of_two_gpus_are_served_on_their_shares() -> None:
    _, found = run_experiment("igniter-live", "gpus=2", "seconds=3", "warmup_s=1", "time_factor=40")
    assert 2 <= len(found["rows"]) < 12
    for row in found["rows"]:
        assert row["requests"] > 0
        assert row["p50_ms"] > 0
    assert [bar["name"] for bar in found["bars"]] == ["GPUs of our plan, at most", "violations, at most"]


def test_ensembles_run_beside_their_models() -> None:
    _, found = run_experiment("overhead", "sizes=[1, 3]", "rounds=3", "warmup_rounds=1", 'gap_ns="1ms"')
    ways = [(row["models"], row["way"]) for row in found["rows"]]
    assert ways == [(size, way) for size in (1, 3) for way in ("ensemble", "one by one", "at once")]
    assert all(row["p50_us"] > 0 and row["predict_us"] > 0 and row["queue_us"] > 0 for row in found["rows"])
