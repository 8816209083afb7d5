"""The Grafana dashboards: up to date, valid by Grafana's schema, complete, and only about metrics that exist."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from horologe_common.metrics.metric_definitions import METRICS

ROOT = Path(__file__).resolve().parents[2]
GRAFANA = ROOT / "deploy" / "grafana"
DASHBOARDS = sorted((GRAFANA / "dashboards").glob("*.json"))
SUFFIX = re.compile(r"_(bucket|sum|count)$")
NAME = re.compile(r"\b(?:nv|horologe|process)_\w+")


@pytest.fixture(scope="module")
def queries() -> Any:
    sys.path.insert(0, str(GRAFANA))
    import dashboard_queries

    return dashboard_queries


def declared_metric(name: str) -> str | None:
    """Return the metric that has this series, or None."""
    base = SUFFIX.sub("", name)
    if METRICS.get(base) and METRICS[base].kind == "histogram":
        return base
    return name if name in METRICS else None


def test_there_is_a_dashboard_for_each_page_of_observing() -> None:
    assert [path.stem for path in DASHBOARDS] == [
        "applications", "controller", "models", "overview", "pipelines", "workers"
    ]  # fmt: skip


def test_files_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("grafana_foundation_sdk", reason="grafana-foundation-sdk is not installed (the extra `dev`)")
    sys.path.insert(0, str(GRAFANA))
    import generate

    assert generate.main(["--check"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_file_is_valid_by_the_schema(path: Path) -> None:
    """`deploy/grafana/schema/README.md` says where the schema is from."""
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed (the extra `dev`)")
    schema = json.loads((GRAFANA / "schema" / "dashboard.jsonschema.json").read_text())
    jsonschema.Draft7Validator(schema).validate(json.loads(path.read_text()))


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_every_panel_is_complete(path: Path, queries: Any) -> None:
    panels = queries.read_panels(path)
    titles = [panel["title"] for panel in panels]
    assert len(titles) == len(set(titles))
    for panel in panels:
        defaults: dict[str, Any] = panel["fieldConfig"]["defaults"]
        assert panel["description"].endswith("."), panel["title"]
        assert defaults["unit"], panel["title"]
        steps = defaults["thresholds"]["steps"]
        assert "value" not in steps[0] or steps[0]["value"] is None
        values = [step["value"] for step in steps[1:]]
        assert values == sorted(values)
        assert panel["targets"], panel["title"]
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24
        assert panel["datasource"]["uid"] == "$datasource"
    assert sum(len(panel["fieldConfig"]["defaults"]["thresholds"]["steps"]) > 1 for panel in panels) >= 2


def test_latencies_that_link_to_traces_show_their_exemplars(queries: Any) -> None:
    linked = ("horologe_request_seconds", "horologe_application_request_seconds", "horologe_slack_seconds")
    for panel in (panel for path in DASHBOARDS for panel in queries.read_panels(path)):
        shown = [target for target in panel["targets"] if target.get("exemplar")]
        has_links = any(f"{name}_bucket" in target["expr"] for target in panel["targets"] for name in linked)
        assert len(shown) == has_links, panel["title"]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_queries_name_metrics_that_exist(path: Path) -> None:
    for name in NAME.findall(path.read_text()):
        assert declared_metric(name), name


@pytest.mark.parametrize("page", ["observing.md", "runbook.md", "operating.md"])
def test_pages_name_metrics_that_exist(page: str) -> None:
    for name in NAME.findall((ROOT / "docs" / page).read_text()):
        is_prefix = any(metric.startswith(name) for metric in METRICS)
        assert declared_metric(name) or (name.endswith("_") and is_prefix) or name == "horologe_dashboards", name


def test_rules_name_metrics_that_exist() -> None:
    for path in (ROOT / "deploy" / "prometheus" / "rules").glob("*.yml"):
        for name in NAME.findall(path.read_text()):
            assert declared_metric(name), name


def test_every_metric_is_answered_for_in_a_dashboard_or_in_observing() -> None:
    texts = [path.read_text() for path in (*DASHBOARDS, *(ROOT / "docs").glob("*.md")) if path.name != "metrics.md"]
    named = {declared_metric(name) for text in texts for name in NAME.findall(text)}
    unused = {name for name in METRICS if name not in named and not name.startswith("nv_")}
    assert not unused
