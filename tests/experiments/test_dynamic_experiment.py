"""`horologe experiment dynamic` on real processes: its output has the documented form. Tests do not check the bars."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from typer.testing import CliRunner

from horologe_cli.main import app

if TYPE_CHECKING:
    from pathlib import Path


def test_every_side_gets_the_same_arrivals(tmp_path: Path) -> None:
    settings = ("slo_multiple=30", "seconds=1.5", "window_s=0.5", "probes=1", "lengths=[4,512]", "learn_s=1")
    changes = [f"--set={change}" for change in settings]
    written = ["--plot", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, ["experiment", "dynamic", "--quick", "--json", *written, *changes])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    found = json.loads(result.stdout)
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
