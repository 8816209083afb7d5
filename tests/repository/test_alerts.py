"""The alerts of deploy/prometheus/rules/horologe.yml, by `promtool test rules`: each fires, and is silent otherwise."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules" / "horologe.yml"
ALERTS = {
    rule["alert"]: rule
    for group in yaml.safe_load(RULES.read_text())["groups"]
    for rule in group["rules"]
    if "alert" in rule
}
RECORDING = ROOT / "tests" / "rolling_restart.json"
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian package prometheus)")
INTERVAL_S = 15
HOUR = 240
"""Samples of an hour."""
MISS = 'nv_inference_request_failure{model="m",version="1",reason="%s"}'
SUCCESS = 'nv_inference_request_success{model="m",version="1"}'
REFUSED = 'horologe_refused_total{model="m",version="1",reason="work_ahead"}'
LOADS, INFERS = (f'horologe_actions_total{{action="{action}",status="OK"}}' for action in ("load", "infer"))
READY, LOST = (f'horologe_workers{{state="{state}"}}' for state in ("ready", "lost"))
OFFSET, ERROR = (f'horologe_clock_{name}_seconds{{worker="0",incarnation="a"}}' for name in ("offset", "error"))
EDGE_UP, WORKER_UP = 'up{job="horologe",instance="edge"}', 'up{job="horologe-gpu-worker",instance="worker"}'

QUIET = {
    SUCCESS: f"0+15000x{HOUR}",
    MISS % "REFUSED": f"0+1x{HOUR}",
    MISS % "LATE": f"0+0x{HOUR}",
    MISS % "INVALID_INPUT": f"0+9000x{HOUR}",
    'horologe_application_requests_total{application="a",status="OK"}': f"0+1000x{HOUR}",
    REFUSED: f"0+1x{HOUR}",
    LOADS: f"0+3x{HOUR}",
    INFERS: f"0+3000x{HOUR}",
    "horologe_oldest_request_seconds": f"0.02+0x{HOUR}",
    READY: f"2+0x{HOUR}",
    LOST: f"0+0x{HOUR}",
    "horologe_workers_expected": f"2+0x{HOUR}",
    'horologe_tuner_workers{hardware="cpu",state="wanted"}': f"0+0x{HOUR}",
    OFFSET: f"1000+0.00000001x{HOUR}",
    ERROR: f"0.00005+0x{HOUR}",
    'horologe_core_faults_total{instance="edge"}': f"0+0x{HOUR}",
    "horologe_tuner_blind": f"0+0x{HOUR}",
    EDGE_UP: f"1+0x{HOUR}",
    WORKER_UP: f"1+0x{HOUR}",
}
"""An hour of 1,000 requests per second: some are refused, many are invalid, and models are loaded now and then."""

FIRING = {
    "HorologeAttainmentBurnsFast": {MISS % "LOST": f"0+600x{HOUR}"},
    "HorologeAttainmentBurns": {MISS % "LOST": f"0+120x{HOUR}"},
    "HorologeMispredictions": {MISS % "LATE": f"0+30x{HOUR}"},
    "HorologeRefusals": {REFUSED: f"0+1500x{HOUR}"},
    "HorologeQueueAge": {"horologe_oldest_request_seconds": f"0+1x{HOUR}"},
    "HorologeWorkersLost": {READY: f"2x40 1x{HOUR}"},
    "HorologeProcessDown": {WORKER_UP: f"1x40 0x{HOUR}"},
    "HorologeLoadThrash": {LOADS: f"0+600x{HOUR}"},
    "HorologeClockOffset": {OFFSET: f"1000+0.006x{HOUR}"},
    "HorologeCoreFault": {'horologe_core_faults_total{instance="edge"}': f"0x220 1x{HOUR}"},
    "HorologeTunerBlind": {"horologe_tuner_blind": f"0x40 1x{HOUR}"},
}
"""Alert -> the series that differ from a quiet hour."""
NOT_FIXED = {"horologe_workers_expected": f"0+0x{HOUR}"}
FIRING_TOO = [
    ("HorologeWorkersLost", NOT_FIXED | {READY: f"3x40 2x{HOUR}", LOST: f"0x40 1x{HOUR}"}),
    ("HorologeWorkersLost", NOT_FIXED | {READY: f"1x40 0x{HOUR}"}),
    ("HorologeWorkersLost", {'horologe_tuner_workers{hardware="cpu",state="wanted"}': f"3+0x{HOUR}"}),
    ("HorologeProcessDown", {READY: f"2x40 _x{HOUR}", LOST: f"0x40 _x{HOUR}"}),
    ("HorologeClockOffset", {ERROR: f"0.00005x40 0.006x{HOUR}"}),
]
"""Other causes of an alert: a worker was lost, none is ready, fewer than wanted are; the controller is gone."""
ALSO = {"HorologeAttainmentBurnsFast": {"HorologeAttainmentBurns"}}
"""Alerts that fire together with another."""


def run_promtool(folder: Path, series: dict[str, str], firing: set[str]) -> subprocess.CompletedProcess[str]:
    """Check that at the end of the hour exactly these alerts fire. If none does, also check every fifth minute."""
    minutes = [] if firing else range(0, 60, 5)
    checks = [{"eval_time": f"{minute}m", "alertname": name, "exp_alerts": []} for minute in minutes for name in ALERTS]
    expressions = [
        {
            "expr": f'count(ALERTS{{alertstate="firing",alertname="{name}"}}) > bool 0 or vector(0)',
            "eval_time": "60m",
            "exp_samples": [{"labels": "{}", "value": float(name in firing)}],
        }
        for name in ALERTS
    ]
    test: dict[str, Any] = {
        "interval": f"{INTERVAL_S}s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": checks,
        "promql_expr_test": expressions,
    }
    return check_rules(folder, test)


def check_rules(folder: Path, test: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Run one test of the rules."""
    file = folder / "test.yml"
    document = {"rule_files": [str(RULES)], "evaluation_interval": f"{INTERVAL_S}s", "tests": [test]}
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    assert PROMTOOL is not None
    return subprocess.run([PROMTOOL, "test", "rules", str(file)], capture_output=True, text=True, timeout=50)


@needs_promtool
@pytest.mark.parametrize("name", ["prometheus.yml", "local.yml"])
def test_configurations_are_valid(name: str) -> None:
    file = RULES.parents[1] / name
    result = subprocess.run([str(PROMTOOL), "check", "config", str(file)], capture_output=True, text=True, timeout=50)
    assert result.returncode == 0, result.stdout + result.stderr


@needs_promtool
def test_no_alert_fires_in_a_quiet_hour(tmp_path: Path) -> None:
    result = run_promtool(tmp_path, QUIET, set())
    assert result.returncode == 0, result.stdout + result.stderr


def count_samples(values: str) -> int:
    """Return the number of samples of a series in promtool's notation: `1x3` are four, `_x3` three."""
    tokens = [token.partition("x") for token in values.split()]
    return sum(int(times or 0) + (value != "_") for value, _, times in tokens)


@needs_promtool
@pytest.mark.parametrize("slowness", [1, 3])
def test_no_alert_fires_in_a_recorded_rolling_restart(slowness: int, tmp_path: Path) -> None:
    """`slowness`: how many times as long as in the recording everything takes.

    tests/system/processes/test_rolling_alerts.py has recorded it: two frontends, two selectors, a controller, two
    workers, profiler and tuner, restarted one after the other under load.
    """
    recording = json.loads(RECORDING.read_text())
    series, interval_s = recording["series"], slowness * recording["interval_s"]
    restarted = [values for name, values in series.items() if name.startswith("up{")]
    assert len(restarted) == 9
    assert all(" 0" in values for values in restarted)
    firing, scraped = 'count_over_time(ALERTS{alertstate="firing"}[1h])', "count_over_time(up[1h])"
    end = f"{round(interval_s * (count_samples(next(iter(series.values()))) - 1))}s"
    expressions = ((f"count({firing}) or vector(0)", 0), (f"count({scraped})", len(restarted)))
    test = {
        "interval": f"{interval_s}s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {"expr": text, "eval_time": end, "exp_samples": [{"labels": "{}", "value": value}]}
            for text, value in expressions
        ],
    }
    result = check_rules(tmp_path, test)
    assert result.returncode == 0, result.stdout + result.stderr


@needs_promtool
@pytest.mark.parametrize("alert", ALERTS)
def test_alert_fires_alone(alert: str, tmp_path: Path) -> None:
    result = run_promtool(tmp_path, QUIET | FIRING[alert], {alert} | ALSO.get(alert, set()))
    assert result.returncode == 0, result.stdout + result.stderr


@needs_promtool
@pytest.mark.parametrize(("alert", "series"), FIRING_TOO)
def test_alert_fires_for_each_cause(alert: str, series: dict[str, str], tmp_path: Path) -> None:
    result = run_promtool(tmp_path, QUIET | series, {alert})
    assert result.returncode == 0, result.stdout + result.stderr


@needs_promtool
def test_fewer_workers_on_purpose_are_no_alert(tmp_path: Path) -> None:
    """A worker that is stopped drains, and is not lost."""
    series = QUIET | NOT_FIXED | {READY: f"3x40 2x{HOUR}"}
    result = run_promtool(tmp_path, series, set())
    assert result.returncode == 0, result.stdout + result.stderr


@needs_promtool
def test_rules_are_valid() -> None:
    assert PROMTOOL is not None
    result = subprocess.run([PROMTOOL, "check", "rules", str(RULES)], capture_output=True, text=True, timeout=50)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_alert_has_a_section_in_the_runbook() -> None:
    anchors = set()
    for heading in re.findall(r"^#+ (.+)$", (ROOT / "docs" / "runbook.md").read_text(), re.MULTILINE):
        anchors.add(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-"))
    for alert, rule in ALERTS.items():
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert page == "docs/runbook.md"
        assert anchor in anchors, alert
        assert rule["labels"]["severity"] in ("critical", "warning")
