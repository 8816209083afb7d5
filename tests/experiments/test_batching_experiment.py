"""`horologe experiment batching` on real models, shortened: its output has the documented form and adds up."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from experiments.run_experiment import run_experiment
from harness.command_line import run_horologe
from horologe_cli.demo.digits import held_out
from horologe_experiments.live.batch_times import BatchTimes, enlarge

if TYPE_CHECKING:
    from pathlib import Path

TINY = [
    'onnx=["digits-cnn"]',
    'estimators=["linear-svm"]',
    'warmup="500ms"',
    'duration="1200ms"',
    "requests=24",
    "effort.rounds=1",
    "effort.runs_min=3",
    'effort.enough_ns="1ms"',
    'delayed.warmup="300ms"',
    'delayed.duration="1s"',
    'live.models=["linear-svm"]',
    "live.largest=16",
    "live.most_rate=200",
    "live.loads=[0.001,1]",
    "live.warmup_s=0.2",
    "live.seconds=0.5",
]
MEASURED = BatchTimes("m", "onnx", {1: 2.0, 2: 2.0, 4: 4.0, 8: 12.0})
USAGE = 2


def test_rows_by_model_and_strategy_delays_and_bars(tmp_path: Path) -> None:
    _, found = run_experiment("batching", *TINY, folder=tmp_path)
    assert list(found) == ["experiment", "rows", "bars"]
    rows = {(row["model"], row["batching"]): row for row in found["rows"]}
    assert list(rows) == [
        (model, batching) for model in ("digits-cnn", "linear-svm") for batching in ("none", "aimd", "quantile")
    ]
    for row in rows.values():
        assert 1 <= row["rows"] <= 1.7 * row["largest"]
        assert row["gain"] == pytest.approx(row["throughput"] / rows[row["model"], "none"]["throughput"], rel=0.02)
    assert rows["linear-svm", "aimd"]["gain"] > 5 * rows["digits-cnn", "aimd"]["gain"], "a row alone is mostly overhead"
    names = {bar["name"].partition(":")[0] for bar in found["bars"]}
    assert names == {"aimd", "quantile", "linear-svm", "live, linear-svm at 0.001", "live, linear-svm at 1"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["batching.json", "batching.md", "batching.png"]
    series = json.loads((tmp_path / "batching.json").read_text())["series"]
    live = series["Live, requests of one row"]
    assert [row["batching"] for row in live] == 2 * ["none", "aimd", "quantile", "horologe"]
    assert [row["load"] for row in live] == 4 * [0.001] + 4 * [1]
    assert len({(row["load"], row["offered"]) for row in live}) == 2
    assert all(row["answered"] >= row["in_time"] for row in live)
    delays = series["Delayed batches (Fig. 5)"]
    alone, waited = [row for row in delays if row["model"] == "linear-svm"]
    assert waited["rows"] > alone["rows"]
    assert waited["p50_ms"] > alone["p50_ms"]


def test_the_largest_batch_within_a_time_is_interpolated() -> None:
    assert [MEASURED.most_rows(limit_ms) for limit_ms in (1, 2, 4, 7.9, 8, 100)] == [1, 2, 4, 5, 6, 8]
    assert MEASURED.batch_ms(3) == 3.0
    assert MEASURED.rate(4) == 1000.0


def test_an_enlarged_image_shows_the_same_digit() -> None:
    images, _ = held_out()
    large = enlarge(images)
    assert large.shape == (len(images), 784)
    corners = large.reshape(-1, 28, 28)[:, [0, 0, -1, -1], [0, -1, 0, -1]]
    assert (corners == images.reshape(-1, 8, 8)[:, [0, 0, -1, -1], [0, -1, 0, -1]]).all()


@pytest.mark.parametrize(
    ("change", "told"), [('onnx=["nope"]', "'nope'"), ('estimators=["nope"]', "wanted one of no-op, linear-svm")]
)
def test_an_unknown_model_is_a_usage_error(change: str, told: str) -> None:
    result = run_horologe("experiment", "batching", "--set", change)
    assert result.exit_code == USAGE
    assert told in result.stderr


def test_without_scikit_learn_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    result = run_horologe("experiment", "batching")
    assert result.exit_code == USAGE
    assert "horologe[models]" in result.stderr
