"""`horologe experiment overhead` on real processes: its output has the documented form. Tests do not check the bars."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from horologe_cli.main import app


def test_ensembles_beside_their_models() -> None:
    changes = [f"--set={change}" for change in ("sizes=[1, 3]", "rounds=3", "warmup_rounds=1", 'gap_ns="1ms"')]
    result = CliRunner().invoke(app, ["experiment", "overhead", "--quick", "--json", *changes])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    found = json.loads(result.stdout)
    assert list(found) == ["experiment", "rows", "bars"]
    ways = [(row["models"], row["way"]) for row in found["rows"]]
    assert ways == [(size, way) for size in (1, 3) for way in ("ensemble", "one by one", "at once")]
    assert all(row["p50_us"] > 0 and row["predict_us"] > 0 and row["queue_us"] > 0 for row in found["rows"])
