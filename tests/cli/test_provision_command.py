"""`horologe plan make` of workloads: plans with their reasons, a figure, changes of running plans, invalid files."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from horologe_cli.main import app
from horologe_planning.plan import parse_plans

OK, FAILED, USAGE = 0, 1, 2
FIRST = '[[workload]]\nname = "thumbnails"'
WORKLOADS = """
[[workload]]
name = "thumbnails"
model = "alexnet"
rate = 500
slo = "15ms"

[[workload]]
model = "resnet50"
rate = 400
slo = "40ms"
batch_sizes = [1, 2, 4, 8]

[[workload]]
model = "vgg19"
rate = 200
slo = "60ms"
"""


def run(*arguments: object) -> Any:
    result = CliRunner().invoke(app, ["plan", "make", *(str(argument) for argument in arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "workloads.toml"
    path.write_text(text)
    return path


def test_a_plan_says_what_it_costs_and_why(tmp_path: Path) -> None:
    figure = tmp_path / "shares.png"
    result = run(write(tmp_path, WORKLOADS), "--plot", figure)
    assert result.exit_code == OK, result.stderr
    for text in ("v100-1", "thumbnails", "cost: 1 x v100, $3.06 per hour", "lower bound", "reasons", "alone"):
        assert text in result.stdout
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_the_plan_is_for_the_served_models_and_their_batch_sizes(tmp_path: Path) -> None:
    document = json.loads(run(write(tmp_path, WORKLOADS), "--json").stdout)
    shares = {plan.name: plan.placements[0] for plan in parse_plans(json.dumps(document))}
    assert set(shares) == {"thumbnails", "resnet50", "vgg19"}
    assert shares["resnet50"].max_batch in (1, 2, 4, 8)
    for share in shares.values():
        sizes, times = zip(*share.exec_ns, strict=True)
        assert sizes == tuple(range(1, share.max_batch + 1))
        assert list(times) == sorted(times)
        assert 0 < share.deviation_ns < share.latency_ns
    assert document["report"]["workloads"]["explanation"]["cheaper"] is None  # no plan has fewer than one GPU


def test_a_plan_without_a_gpu_less_names_the_violations(tmp_path: Path) -> None:
    result = run(write(tmp_path, WORKLOADS.replace("rate = 200", "rate = 400").replace("60ms", "20ms")))
    assert "cost: 2 x v100" in result.stdout
    assert "next cheaper plan, without v100-" in result.stdout
    assert " would " in result.stdout


def test_the_margin_is_larger_where_that_costs_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, WORKLOADS)
    free, wanted = (
        json.loads(run(path, "--margin", margin, "--json").stdout)["report"]["workloads"]["sharing"]
        for margin in (0, 5)
    )
    assert (free["margin"], wanted["margin"]) == (3, 5)
    assert free["cost_per_hour"] == free["cost_bound"] <= wanted["cost_per_hour"]


def test_a_running_plan_changes_with_few_moves(tmp_path: Path) -> None:
    running = tmp_path / "plan.json"
    running.write_text(run(write(tmp_path, WORKLOADS), "--json").stdout)
    more = WORKLOADS.replace("rate = 200", "rate = 230") + '[[workload]]\nmodel = "ssd"\nrate = 100\nslo = "25ms"\n'
    document = json.loads(run(write(tmp_path, more), "--from", running, "--json").stdout)
    assert document["report"]["workloads"]["moved"] == []
    devices = {plan["name"]: plan["placements"][0]["device"] for plan in document["plans"]}
    assert devices == {"thumbnails": "v100-1", "resnet50": "v100-1", "vgg19": "v100-1", "ssd": "v100-2"}
    text = run(write(tmp_path, more), "--from", running).stdout
    assert "moved to another device: none" in text
    assert "a new plan would cost $6.12 per hour" in text


@pytest.mark.parametrize(
    ("old", "new", "code", "message"),
    [
        ("rate = 500", "rate = 0", USAGE, "workload 'thumbnails': rate: got 0, wanted a finite number above 0"),
        ("rate = 500", "rate = -2", USAGE, "rate: got -2"),
        ("rate = 500", "rate = nan", USAGE, "rate: got nan"),
        ("rate = 500", 'rate = "many"', USAGE, "workload[0].rate"),
        ("rate = 500", "rates = 500", USAGE, "workload[0]"),
        ('slo = "15ms"', 'slo = "15"', USAGE, "workload 'thumbnails': slo: got '15', wanted a number with one of"),
        ('slo = "15ms"', 'slo = "-1ms"', USAGE, "slo_ms: got -1"),
        ('slo = "15ms"', 'slo = "1ms"', FAILED, "slo_ms: got 1; v100: batch 1 takes"),
        ('"alexnet"', '"bert"', USAGE, "model: got 'bert', wanted one of alexnet"),
        ("[1, 2, 4, 8]", "[8, 4]", USAGE, "batch_sizes: got [8, 4], wanted ascending numbers of 1 to 32"),
        ("[1, 2, 4, 8]", "[64]", USAGE, "batch_sizes: got [64]"),
        ('"thumbnails"', '"vgg19"', USAGE, "'vgg19': got the name twice"),
        (FIRST, "[gpu.k80]\n" + FIRST, USAGE, "gpu.k80: got no coefficients"),
        (
            '\n[[workload]]\nname = "th',
            '[gpu.v100]\nprice = 0\n[[workload]]\nname = "th',
            USAGE,
            "price_per_hour: got 0",
        ),
        (FIRST, "[gpu.v100]\ntime_factor = 0\n" + FIRST, USAGE, "gpu.v100: time_factor: got 0, wanted a finite"),
        (FIRST, "margin = -1\n" + FIRST, USAGE, "margin: got -1"),
        (FIRST, "gpu = {}\n" + FIRST, USAGE, "gpu types: got none"),
        ("[[workload]]", "[[workload", USAGE, "workloads.toml: "),
    ],
)
def test_an_invalid_file_is_an_error_that_names_the_field(
    tmp_path: Path, old: str, new: str, code: int, message: str
) -> None:
    result = run(write(tmp_path, WORKLOADS.replace(old, new, 1)))
    assert result.exit_code == code
    assert message in result.stderr


def test_a_missing_file_and_a_plan_whose_shares_exceed_a_gpu_are_errors(tmp_path: Path) -> None:
    assert "nowhere.toml: No such file" in run(tmp_path / "nowhere.toml").stderr
    path, running = write(tmp_path, WORKLOADS), tmp_path / "plan.json"
    document = json.loads(run(path, "--json").stdout)
    for plan in document["plans"]:
        plan["placements"][0]["percent"] = 50
    running.write_text(json.dumps(document))
    result = run(path, "--from", running)
    assert result.exit_code == USAGE
    assert "device 'v100-1': percent: got 150 in all, wanted at most 100" in result.stderr
    running.write_text("[")
    assert "plan.json: plan: " in run(path, "--from", running).stderr


def test_the_example_is_planned_for_its_models() -> None:
    example = Path(__file__).parents[2] / "examples" / "sharing"
    document = json.loads(run(example / "workloads.toml", "--json").stdout)
    plans = parse_plans(json.dumps(document))
    for plan in plans:
        for share in plan.placements:
            manifest = tomllib.loads((example / "models" / plan.name / "1" / "model.toml").read_text())
            assert manifest["slo"] == f"{plan.slo_ns / 1e6:g}ms"
            assert share.max_batch in manifest["batch_sizes"]
            sharing = manifest["emulated"]["sharing"]
            assert (sharing["gpu"], sharing["model"]) == (share.hardware, share.coefficients)
            assert sharing["time_factor"] == 10
    assert len({share.device for plan in plans for share in plan.placements}) == 2


def test_measured_coefficients_are_read_beside_the_file(tmp_path: Path) -> None:
    from horologe_common.interference.v100 import CALIBRATED
    from horologe_planning.interference.coefficients_file import CoefficientsFile, write_document

    write_document(tmp_path / "a10.json", CoefficientsFile(CALIBRATED.gpu, tuple(CALIBRATED.models.values())))
    gpus = '[gpu.v100]\n[gpu.a10]\ncoefficients = "a10.json"\nprice = 1.0\n'
    document = json.loads(run(write(tmp_path, gpus + WORKLOADS), "--json").stdout)
    assert {plan["placements"][0]["hardware"] for plan in document["plans"]} == {"a10"}
    (tmp_path / "a10.json").write_text("{}")
    result = run(write(tmp_path, gpus + WORKLOADS))
    assert result.exit_code == USAGE
    assert "a10.json: " in result.stderr
