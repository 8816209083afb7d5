"""Reads panels and their queries from dashboard files, and asks a Prometheus for their data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode
from urllib.request import urlopen

DASHBOARDS = Path(__file__).resolve().parent / "dashboards"
TIMEOUT_S = 30


class PanelQuery(NamedTuple):
    """A query of a panel as Grafana would send it for all values of the variables."""

    panel: dict[str, Any]
    expression: str
    legend: str

    @property
    def title(self) -> str:
        return str(self.panel["title"])


def read_panels(path: Path) -> list[dict[str, Any]]:
    """Return the panels of a dashboard file, without its rows, in the order of the page."""
    panels: list[dict[str, Any]] = json.loads(path.read_text())["panels"]
    nested = [panel for row in panels for panel in (row, *row.get("panels", ()))]
    return [panel for panel in nested if panel["type"] != "row"]


def read_queries(panel: dict[str, Any], rate_interval: str) -> Iterator[PanelQuery]:
    """Yield the queries of a panel with `rate_interval`, such as 30s, in the place of Grafana's."""
    for target in panel["targets"]:
        expression = target["expr"].replace("$__rate_interval", rate_interval)
        for variable in ("instance", "model", "application", "pipeline"):
            expression = expression.replace(f'"${variable}"', '".*"')
        yield PanelQuery(panel, expression, target["legendFormat"])


def ask(prometheus: str, path: str, **parameters: Any) -> Any:
    """Return the data of a call of Prometheus' HTTP API. Raises HTTPError for an invalid query."""
    with urlopen(f"{prometheus}/api/v1/{path}?{urlencode(parameters)}", timeout=TIMEOUT_S) as answer:
        return json.load(answer)["data"]


def range_of(prometheus: str, expression: str, start_s: float, end_s: float, step_s: float) -> list[dict[str, Any]]:
    """Return the series of an expression over time: `metric` (labels) and `values` (pairs of time and text)."""
    series: list[dict[str, Any]] = ask(
        prometheus, "query_range", query=expression, start=start_s, end=end_s, step=step_s
    )["result"]
    return series
