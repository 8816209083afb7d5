"""The experiments on iGniter that are not part of the quick runs: measured data, and times of this machine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from experiments.interference_data import needs_measurements
from experiments.run_experiment import run_experiment
from harness.command_line import run_horologe
from horologe_experiments.igniter.igniter_data import VARIABLE

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

SMALL = ["counts=[12, 20]", "changes=5", "repeats=1"]


def run(name: str, folder: Path, *changes: str) -> dict[str, Any]:
    run_experiment(name, *changes, folder=folder, options=())
    assert (folder / f"{name}.png").stat().st_size > 0
    document: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return document


def test_time_and_moves_are_reported(tmp_path: Path) -> None:
    document = run("igniter-time", tmp_path, *SMALL)
    assert [row["workloads"] for row in document["rows"]] == [12, 20]
    assert sum(document["series"]["moves"]) == 5


@needs_measurements
def test_errors_on_held_out_pairs_reach_the_bars(tmp_path: Path) -> None:
    document = run("igniter-error", tmp_path)
    assert all(bar["holds"] for bar in document["bars"])
    assert {row["model"] for row in document["rows"]} == {"alexnet", "resnet50", "vgg19", "ssd", "all"}


def test_the_folder_of_the_measurements_is_named_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    result = run_horologe("experiment", "igniter-error")
    assert f"{VARIABLE}: got {str(tmp_path)!r}, wanted the folder of iGniter's tables" in result.stderr
