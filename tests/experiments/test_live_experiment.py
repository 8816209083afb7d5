"""`horologe experiment live` on real processes: its output has the documented form. Tests do not check the bars."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from horologe_cli.main import app


def test_the_same_arrivals_live_and_simulated() -> None:
    changes = [f"--set={change}" for change in ("loads=[0.5]", 'slo="10s"', "seconds=1.5", "warmup_s=0.5", "probes=5")]
    result = CliRunner().invoke(app, ["experiment", "live", "--quick", "--json", *changes])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    found = json.loads(result.stdout)
    assert list(found) == ["experiment", "rows", "bars"]
    (row,) = found["rows"]
    assert row["load"] == 0.5
    assert min(row["live_goodput"], row["sim_goodput"], row["live_p50_ms"], row["sim_p50_ms"]) > 0
    assert [bar["bar"] for bar in found["bars"]][:2] == [0.02, 0.05]


def test_a_workload_of_the_tournament_live_and_simulated() -> None:
    changes = [f"--set={change}" for change in ("requests=150", "models=3", "time_factor=1")]
    result = CliRunner().invoke(app, ["experiment", "live-tournament", "--quick", "--json", *changes])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    (row,) = json.loads(result.stdout)["rows"]
    assert row["other"] == "edf"
    assert row["simulated, horologe"] > 0
    assert {"live, horologe", "live, other", "same order"} <= row.keys()


def test_the_estimator_beside_a_live_run() -> None:
    traffic = 'traffic=[{pipeline="cascade", rate=20, cv=1}]'
    changes = [f"--set={change}" for change in (traffic, "seconds=2", "warmup_s=0.5", "plan_seconds=10")]
    result = CliRunner().invoke(app, ["experiment", "inferline-live", "--quick", "--json", *changes])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    found = json.loads(result.stdout)
    (row,) = found["rows"]
    assert min(row["live_p99_ms"], row["estimated_p99_ms"]) > 0
    assert row["live_attainment"] > 0
    assert [bar["bar"] for bar in found["bars"]] == [0.1]
