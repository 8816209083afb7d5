"""All experiments on tiny scenes through the command: form of the JSON, bars, determinism by seed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from experiments.run_experiment import run_experiment
from harness.command_line import run_horologe
from horologe_experiments.clockwork.fig5 import Scene
from horologe_experiments.harness.experiment import Bar, load_scene
from horologe_experiments.registry import EXPERIMENTS

if TYPE_CHECKING:
    from pathlib import Path

TINY = {
    "fig5": ["slos_ms=[50]", 'schedulers=["clockwork", "fifo"]', 'duration="300ms"', 'warmup="100ms"'],
    "fig6": ["models=120", "cluster.pages=140", "minutes=6", "minutes_before=1", 'minute="300ms"', "major_rate=300"],
    "fig7": ["steps=6", 'step="200ms"', 'warmup="200ms"', "models=[6]", "rates=[300]", "tightest=[11.4]"],
    "fig8": ["rate=200", "mapping.copies=1", "mapping.duplicates=1", 'duration="500ms"', 'warmup="100ms"'],
    "scale": ["rate=200", "mapping.copies=1", "mapping.duplicates=1", 'duration="500ms"', 'warmup="100ms"'],
    "orloj-tables": [
        'cases=["std-1"]',
        "requests=20",
        "processes=1",
        "loads=[{share=0.8, seeds=1, bound_seeds=1, hidden_seeds=0, searched=true}]",
    ],
    "orloj-sensitivity": ["slos=[3]", "requests=60", "p99_ms=[50]"],
    "bandits": ["requests=300", "fails_at=100", "recovers_at=200", "seeds=2", "training=200"],
    "ensembles": ["requests=300", "seeds=1"],
    "personal": ["requests=30", "writers=2", "steps=[0, 10]"],
    "replicas": ["replicas=[1, 2]", "row_ms=1.0", "largest=32", 'warmup="300ms"', 'duration="800ms"'],
    "feedback": ["load.observations=2000", "load.unmeasured=500", "load.inputs=100", "kill_after=5", "alone=false"],
    "stragglers": ["sizes=[2]", 'schedulers=["horologe"]', 'duration="1s"', 'warmup="100ms"'],
    "window": ["rate=300", "widths_ms=[0.1, 50]", 'duration="500ms"', 'warmup="100ms"'],
    "network": ["slos_ms=[50]", "requests=150", "processes=1", 'schedulers=["horologe", "edf"]'],
    "tournament": ["seeds=1", "requests=150", "processes=1", 'schedulers=["horologe", "edf"]'],
}
TINY |= {
    "inferline-cost": ['pipelines=["cascade"]', "rates=[50]", "plan_seconds=10", "serve_seconds=10"],
    "inferline-planner": ['pipelines=["cascade"]', "slos_ms=[100]", "rates=[20]", "plan_seconds=10", "exact_runs=50"],
    "inferline-tuner": [
        "sample_seconds=20",
        "processes=1",
        'scenarios=[{name="s", pipeline="cascade", wanted=["step", "burst"], phases=[{seconds=20, rate=20}]}]',
    ],
    "inferline-traces": ["point_seconds=1", 'pipeline="cascade"', "max_rate=50", "oracle=true", "processes=1"],
    "inferline-drop": ['duration="500ms"'],
    "inferline-pooled": ['pipelines=["cascade"]', "cvs=[1]", "pool_queries=150", "serve_seconds=3"],
    "igniter-run": ["seconds=2", 'runs=[{strategy="ours", arrivals="even", seeds=1}]'],
    "igniter-shadow": ["seconds=3", "switches=2"],
}
TINY |= {
    "igniter-table1": [],
    "igniter-plans": [],
    "igniter-joint": ['pipelines=["cascade"]', "plan_seconds=5", "serve_seconds=5", "controller_seconds=2"],
    "igniter-exact": ["sizes=[3]", "cases=2", "large=[20]", "large_cases=1"],
}
DRAWN = (
    *("fig6", "fig7", "fig8", "scale", "window", "orloj-tables", "tournament", "bandits", "ensembles", "personal"),
    *("replicas", "inferline-cost", "inferline-planner", "inferline-tuner", "inferline-traces", "inferline-pooled"),
    *("inferline-drop", "igniter-run", "igniter-joint", "igniter-shadow", "network"),
)
OK, A_BAR_FAILS, USAGE = 0, 1, 2


def run(name: str, *more: str) -> tuple[int, dict[str, Any]]:
    return run_experiment(name, *TINY[name], options=("--quick", *more))


@pytest.mark.parametrize("slo_ms", [25, 28])
def test_clients_that_ask_again_at_once_keep_batches_full(slo_ms: int) -> None:
    """An SLO leaves time for one full batch of 15.7 ms, and little more."""
    changes = f"slos_ms=[{slo_ms}]", 'schedulers=["horologe"]', 'duration="3s"', 'warmup="1s"'
    code, document = run_experiment("fig5", *changes, options=("--quick",))
    assert code == OK, document["bars"]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_rows_bars_exit_code_and_figure_have_the_documented_form(name: str, tmp_path: Path) -> None:
    code, document = run(name, "--plot", "--out", str(tmp_path)) if name in DRAWN else run(name)
    assert name not in DRAWN or (tmp_path / f"{name}.png").stat().st_size > 0
    assert list(document) == ["experiment", "rows", "bars"]
    assert document["experiment"] == name
    assert document["rows"]
    assert all(list(bar) == ["name", "value", "bar", "holds"] for bar in document["bars"])
    assert code == (OK if all(bar["holds"] for bar in document["bars"]) else A_BAR_FAILS)


@pytest.mark.parametrize("name", ["fig5", "bandits"])
def test_findings_repeat_by_seed(name: str) -> None:
    first, repeated, other = run(name), run(name), run(name, "--seed", "9")
    assert first == repeated
    assert first[1]["rows"] != other[1]["rows"]


def test_findings_become_files(tmp_path: Path) -> None:
    _, document = run("fig5", "--plot", "--out", str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fig5.json", "fig5.md", "fig5.png"]
    written = json.loads((tmp_path / "fig5.json").read_text())
    assert {key: written[key] for key in document} == document
    page = (tmp_path / "fig5.md").read_text()
    assert all(bar["name"].rpartition(",")[0] in page for bar in document["bars"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], "wanted one of fig5"),
        (["fig5", "--set", "nope"], "wanted KEY=VALUE"),
        (["fig5", "--set", "nope=1"], "nope"),
        (["fig5", "--set", "cluster.devices=many"], "devices"),
    ],
)
def test_invalid_arguments_are_usage_errors_that_name_them(arguments: list[str], message: str) -> None:
    result = run_horologe("experiment", *arguments)
    assert result.exit_code == USAGE
    assert message in result.stderr


def test_a_quick_scene_overrides_only_its_own_values() -> None:
    full, quick = (load_scene("fig5", Scene, quick, {}) for quick in (False, True))
    assert quick.duration_ns < full.duration_ns
    assert (quick.cluster, quick.slos_ms, quick.clients) == (full.cluster, full.slos_ms, full.clients)


@pytest.mark.parametrize(
    ("value", "bar", "sense", "holds"),
    [
        (1.0, 1.0, "at least", True),
        (0.9, 1.0, "at least", False),
        (1.0, 1.0, "at most", True),
        (2, 1, "at most", False),
    ],
)
def test_a_bar_holds_on_its_side(value: float, bar: float, sense: Any, holds: bool) -> None:
    assert Bar("b", value, bar, sense).holds is holds
