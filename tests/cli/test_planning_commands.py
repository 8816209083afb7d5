"""`horologe plan make` and `plan estimate` of pipelines: plans, figures, traces, prices, profiles, invalid input."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from horologe_cli.main import app
from horologe_cli.planning import pipeline_plan
from horologe_load.arrivals import read_trace
from horologe_planning.catalogue import CASCADE, catalogue_profiles
from horologe_planning.estimator.pipeline_workload import PipelineTrace
from horologe_planning.hardware import DEFAULT_PRICES, parse_prices
from horologe_planning.plan import encode_plans, parse_plans
from horologe_planning.search.evaluation import Evaluator
from horologe_planning.search.objective import Objective
from horologe_planning.search.pipeline_planner import make_plan

if TYPE_CHECKING:
    from pathlib import Path

OK, FAILED, USAGE = 0, 1, 2
SHORT = ["--rate", "100", "--duration", "20s"]
STAGES = ["--stage", "fast=v100:4:1", "--stage", "slow=v100:8:1"]


def run(*arguments: object) -> Any:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "arrivals.csv"
    gaps = np.random.default_rng(1).exponential(0.01, 2000)
    path.write_text("".join(f"{time_s:.6f}\n" for time_s in np.cumsum(gaps)))
    return path


def test_a_plan_says_what_it_costs_and_why_others_lost(tmp_path: Path) -> None:
    figure = tmp_path / "plan.png"
    result = run("plan", "make", "cascade", *SHORT, "--slo", "100ms", "--plot", figure)
    assert result.exit_code == OK, result.stderr
    for text in ("SLO 100 ms", "dollars per hour", "predicted P99", "of unseen traffic", "runner-up:", "lower bound",
                 "on pooled devices", "the plan is that on"):  # fmt: skip
        assert text in result.stdout
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_a_plan_file_can_be_estimated_changed_and_given_to_the_tuner(trace: Path, tmp_path: Path) -> None:
    structure, file = tmp_path / "pipeline.json", tmp_path / "plan.json"
    structure.write_bytes(msgspec.json.encode(CASCADE))
    work = PipelineTrace(CASCADE, read_trace(trace, max_gap_s=60))
    planned = make_plan(Evaluator(work, catalogue_profiles(), parse_prices(DEFAULT_PRICES), Objective(CASCADE.slo_ns)))
    file.write_bytes(encode_plans([planned.plan]))
    options = ("--trace", str(trace), "--plan", str(file))
    same = json.loads(run("plan", "estimate", structure, *options, "--json").stdout)
    assert same["cost_per_hour"] == planned.report.cost_per_hour
    assert same["attainment"] == planned.report.attainment >= 0.99
    changed = run("plan", "estimate", structure, *options, "--stage", "slow=cpu:1:1", "--plot", tmp_path / "slow.png")
    assert "within 150 ms: 7" in changed.stdout  # the 30% of the queries that visit it miss the SLO
    assert (tmp_path / "slow.png").exists()


def test_an_slo_that_cannot_be_met_is_reported_with_the_nearest() -> None:
    result = run("plan", "make", "cascade", *SHORT, "--slo", "5ms")
    assert result.exit_code == FAILED
    assert "Longest path: fast 1.32 ms on v100, slow 8.21 ms on v100. Nearest feasible SLO: 9.53 ms" in result.stderr


def test_prices_come_from_the_settings_table_and_the_command_line(tmp_path: Path) -> None:
    config = tmp_path / "horologe.toml"
    config.write_text('[hardware]\nprices = ["v100=2.0", "k80=1.0"]\n')
    options = ("plan", "estimate", "cascade", *SHORT, *STAGES, "--config", config, "--json")
    assert json.loads(run(*options).stdout)["cost_per_hour"] == 4.0
    assert json.loads(run(*options, "--price", "v100=3").stdout)["cost_per_hour"] == 6.0


def test_profiles_of_a_file_take_the_place_of_the_catalogue(tmp_path: Path) -> None:
    profiles = tmp_path / "profiles.json"
    profiles.write_text('[{"model": "resnet18_v2", "hardware": "tpu", "latency_ns": {"1": 1000}}]')
    tpu = ("--stage", "fast=tpu:1:1", "--stage", "slow=v100:8:1", "--price", "tpu=1", "--profiles", profiles)
    assert "tpu" in run("plan", "estimate", "cascade", *SHORT, *tpu).stdout


def test_variants_are_chosen_by_accuracy_and_cost() -> None:
    accuracy = ["resnet50_v2=0.77", "resnet101_v2=0.785", "resnet152_v2=0.792"]
    options = [text for one in accuracy for text in ("--accuracy", one)]
    plan = ("plan", "make", "image-processing", "--rate", "200", "--duration", "10s", *options)
    document = json.loads(run(*plan, "--floor", "0.78", "--json").stdout)
    assert document["report"]["pipeline"]["accuracy"] >= 0.78
    result = run(*plan, "--budget", "0.01")
    assert result.exit_code == FAILED
    assert "budget: got 0.01 dollars per hour" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "make", "nonsense", *SHORT], "PIPELINE: got 'nonsense', wanted a file or one of image-processing"),
        (["plan", "make", "cascade"], "--trace, --rate, --recent: got several or none, wanted one of them"),
        (["plan", "make", "cascade", *SHORT, "--slo", "5"], "setting slo: got '5', wanted a number with one of"),
        (["plan", "make", "cascade", *SHORT, "--slo", "0ms"], "slo_ns: got 0, wanted more than 0"),
        (["plan", "make", "cascade", *SHORT, "--price", "v100=0"], "hardware.prices: got 'v100=0', wanted NAME=PRICE"),
        (["plan", "make", "cascade", *SHORT, "--every", "1min"], "--every: got no --recent, wanted it"),
        (["plan", "make", "cascade", "--recent", "--every", "0min"], "--every: got 0min, wanted more than 0"),
        (["plan", "make", "cascade", *SHORT, "--floor", "0.9"], "--accuracy: got none, wanted that of each variant"),
        (["plan", "make", "cascade", *SHORT, "--accuracy", "x"], "--accuracy: got 'x', wanted MODEL=PART"),
        (["plan", "make", "cascade", "--rate", "1", "--duration", "0s"], "--rate, --cv, --duration: "),
        (
            ["plan", "estimate", "cascade", *SHORT],
            "--stage, --plan: got no configuration of fast, slow, wanted all stages",
        ),
        (
            ["plan", "estimate", "cascade", *SHORT, "--stage", "fast=v100"],
            "--stage: got 'fast=v100', wanted STAGE=HARDWARE",
        ),
        (
            ["plan", "estimate", "cascade", *SHORT, "--stage", "x=v100:1:1"],
            "--stage: got stage 'x', wanted one of fast, slow",
        ),
        (
            ["plan", "estimate", "cascade", *SHORT, "--stage", "fast=tpu:1:1", "--stage", "slow=v100:1:1"],
            "--stage, --plan: stage fast: no profile of resnet18_v2 on 'tpu', wanted v100, k80, cpu",
        ),
    ],
)
def test_invalid_input_is_one_line(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == USAGE
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_files_that_are_no_pipelines_plans_or_profiles_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text('{"name": "p"}')
    for arguments in (["plan", "make", str(path)], ["plan", "make", "cascade", "--profiles", str(path)]):
        result = run(*arguments, *SHORT)
        assert result.exit_code == USAGE
        assert f"{path}: " in result.stderr
    result = run("plan", "estimate", "cascade", *SHORT, "--plan", path)
    assert (result.exit_code, f"{path}: " in result.stderr) == (USAGE, True)
    path.write_text("3\n2\n")
    unordered = run("plan", "make", "cascade", "--trace", path)
    assert (unordered.exit_code, "line 2: got 2 after 3" in unordered.stderr) == (USAGE, True)
    missing = run("plan", "make", "cascade", "--trace", tmp_path / "missing.csv")
    assert (missing.exit_code, "No such file" in missing.stderr) == (USAGE, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "plan: "),
        ('{"plans": []}', "plan: Object missing required field `version`"),
        ('{"version": 2, "plans": []}', "version: got 2, wanted 1"),
        ('{"version": 1, "plans": []}', "plans: got 0, wanted 1 to"),
    ],
)
def test_a_file_that_is_no_plan_is_not_applied(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "plan.json"
    assert "No such file" in run("plan", "apply", path).stderr
    path.write_text(text)
    result = run("plan", "apply", path)
    assert result.exit_code == USAGE
    assert f"{path}: {message}" in result.stderr


def test_a_plan_on_shares_is_made_where_it_is_the_cheapest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_plan, "plan_pooled", lambda *_: None)
    document = json.loads(run("plan", "make", "cascade", "--rate", "150", "--duration", "20s", "--json").stdout)
    (plan,), report = parse_plans(json.dumps(document)), document["report"]["pipeline"]
    assert report["made"] == "shares of devices"
    assert report["shares"]["cost_per_hour"] < report["whole_devices"]["cost_per_hour"]
    assert {share.stage for share in plan.shares} == set(plan.stages) == {"fast", "slow"}
    assert sum(share.percent for share in plan.shares) == 100


def test_a_plan_on_pooled_devices_has_a_stage_for_each_hardware_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_plan, "read_share_times", lambda *_, **__: None)
    document = json.loads(run("plan", "make", "social-media", "--rate", "50", "--duration", "5s", "--json").stdout)
    (plan,), report = parse_plans(json.dumps(document)), document["report"]["pipeline"]
    assert report["made"] == "pooled devices"
    assert report["pooled_devices"]["cost_per_hour"] < report["whole_devices"]["cost_per_hour"]
    assert report["pooled_devices"]["attainment"] >= 0.99
    assert plan.pooled
    rows = {(placed.hardware, placed.replicas) for placed in plan.placements}
    assert rows == set(report["pooled_devices"]["devices"].items())
    (tmp_path / "plan.json").write_text(json.dumps(document))
    result = run("plan", "estimate", "social-media", "--rate", "50", "--plan", tmp_path / "plan.json")
    assert result.exit_code == USAGE
    assert "--plan: got social-media on pooled devices or shares, wanted whole devices" in result.stderr


def test_it_is_said_if_the_devices_of_the_plan_do_not_suffice_as_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_plan, "plan_pooled", lambda *_: None)
    monkeypatch.setattr(pipeline_plan, "read_share_times", lambda *_, **__: None)
    text = run("plan", "make", "cascade", "--rate", "50", "--duration", "5s").stdout
    assert "on pooled devices: those above do not suffice" in text
    assert "the plan is that on whole devices" in text


def test_a_pipeline_and_workloads_are_planned_on_different_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_plan, "plan_pooled", lambda *_: None)
    (tmp_path / "workloads.toml").write_text('[[workload]]\nmodel = "alexnet"\nrate = 500\nslo = "15ms"\n')
    options = ("cascade", tmp_path / "workloads.toml", "--rate", "150", "--duration", "5s", "--json")
    document = json.loads(run("plan", "make", *options).stdout)
    alone, pipeline = parse_plans(json.dumps(document))
    assert (alone.name, pipeline.name) == ("alexnet", "cascade")
    assert set(document["report"]) == {"workloads", "pipeline"}
    assert {share.device for share in alone.shares} == {"v100-1"}
    assert {share.device for share in pipeline.shares} == {"v100-2"}


def test_without_numba_the_extra_that_has_it_is_named() -> None:
    program = "import sys; sys.modules['numba'] = None\nfrom horologe_cli.main import main; main()"
    command = [sys.executable, "-c", program, "plan", "make", "cascade", *SHORT]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert ended.returncode == USAGE
    assert ended.stderr == "horologe: numba: not installed: pip install 'horologe[planner]'\n"


def test_coefficients_that_cannot_be_read_are_errors(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{}")
    result = run("plan", "make", "cascade", *SHORT, "--coefficients", tmp_path / "broken.json")
    assert result.exit_code == USAGE
    assert "--coefficients" in result.stderr
    assert "gpu" in result.stderr
