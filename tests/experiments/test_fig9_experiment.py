"""`horologe experiment fig9` on real processes: its output has the documented form. Tests do not check the bars."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from typer.testing import CliRunner

from horologe_cli.main import app

if TYPE_CHECKING:
    from pathlib import Path

PATIENT = """[
  {name="emulated", slo="20s", rate=100, skew=1.0, pages=14, emulated=[
    {name="resnet50", count=2, exec_ms={1=2.77, 2=3.95}, load_ms=8.33, weights_mb=102.1}]},
  {name="onnx", slo="20s", rate=50, skew=1.0, pages=2, folders=["digits-linear"], width=64},
]"""
"""The sources of the scene, smaller and with an SLO that a busy machine can keep."""


def test_errors_of_live_actions_by_source_action_and_side(tmp_path: Path) -> None:
    changes = [f"--set={change}" for change in (f"sources={PATIENT}", "seconds=1.5", "warmup_s=0.5")]
    written = ["--plot", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, ["experiment", "fig9", "--quick", "--json", *written, *changes])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    found = json.loads(result.stdout)
    assert list(found) == ["experiment", "rows", "bars"]
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
