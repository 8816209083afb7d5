"""Draws the dashboards from their queries with matplotlib: docs/dashboards/*.png. These are not screenshots of Grafana.

    python deploy/grafana/draw.py --prometheus http://127.0.0.1:9090 --minutes 10

Layout, titles, units, limits and queries are those of dashboards/*.json.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt  # behind the choice of the backend

sys.path.insert(0, str(Path(__file__).resolve().parent))
from dashboard_queries import DASHBOARDS, range_of, read_panels, read_queries

PICTURES = DASHBOARDS.parents[2] / "docs" / "dashboards"
COLUMNS, WIDTH_INCH, ROW_INCH, HEADER_INCH = 24, 17.0, 0.36, 0.8
POINTS = 240
LEGENDS = 6
UNITS = {"percentunit": ("%", 100.0), "reqps": ("req/s", 1.0), "ops": ("1/s", 1.0), "bytes": ("MiB", 2.0**-20),
         "s": ("ms", 1e3), "percent": ("%", 1.0), "short": ("", 1.0), "bool": ("", 1.0),
         "ppm": ("ppm", 1.0)}  # fmt: skip
"""Unit in Grafana -> name and factor of what is drawn."""
LABEL = re.compile(r"\{\{\s*(\w+)\s*\}\}")


class Span(NamedTuple):
    """The time that is drawn, in Unix seconds."""

    start_s: float
    end_s: float


def draw(path: Path, prometheus: str, span: Span, rate_interval: str) -> Path:
    """Draw one dashboard. Return the file of the picture."""
    panels = read_panels(path)
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    height_inch = rows * ROW_INCH + HEADER_INCH
    figure = plt.figure(figsize=(WIDTH_INCH, height_inch))
    title = f"{path.stem}: drawn from the dashboard's queries by deploy/grafana/draw.py, not by Grafana"
    figure.text(0.01, 1 - 0.4 * HEADER_INCH / height_inch, title, fontsize=11)
    for panel in panels:
        place = panel["gridPos"]
        left, width = place["x"] / COLUMNS, place["w"] / COLUMNS
        bottom = 1 - (HEADER_INCH + (place["y"] + place["h"]) * ROW_INCH) / height_inch
        height = place["h"] * ROW_INCH / height_inch
        axes = figure.add_axes((left + 0.03, bottom + 0.28 * height, width - 0.045, 0.55 * height))
        _draw_panel(axes, panel, prometheus, span, rate_interval)
    PICTURES.mkdir(exist_ok=True)
    picture = PICTURES / f"{path.stem}.png"
    figure.savefig(picture, dpi=70)
    plt.close(figure)
    return picture


def _draw_panel(axes: Any, panel: dict[str, Any], prometheus: str, span: Span, rate_interval: str) -> None:
    unit, factor = UNITS[panel["fieldConfig"]["defaults"]["unit"]]
    lines = []
    step_s = max(1.0, (span.end_s - span.start_s) / POINTS)
    for query in read_queries(panel, rate_interval):
        for series in range_of(prometheus, query.expression, *span, step_s):
            times = [point[0] - span.end_s for point in series["values"]]
            lines.append(
                (_legend(query.legend, series["metric"]), times, [float(p[1]) * factor for p in series["values"]])
            )
    lines.sort(key=lambda line: -_last(line[2]))
    axes.set_title(f"{panel['title']}{f' ({unit})' if unit else ''}", fontsize=9, loc="left")
    if panel["type"] == "stat":
        axes.axis("off")
        text = f"{_last(lines[0][2]):.4g} {unit}" if lines else "no data"
        axes.text(0.5, 0.4, text, fontsize=20, ha="center", va="center", transform=axes.transAxes)
        return
    for name, times, values in lines:
        axes.plot(times, values, linewidth=1, label=name)
    axes.set_xlim(span.start_s - span.end_s, 0)
    axes.set_ylim(bottom=0)
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.3)
    top = axes.get_ylim()[1]
    for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]:
        if step.get("value") is not None and step["value"] * factor <= top:
            axes.axhline(step["value"] * factor, color=step["color"], linewidth=0.8, linestyle="--")
    if lines:
        handles, names = axes.get_legend_handles_labels()
        axes.legend(
            handles[:LEGENDS], names[:LEGENDS], fontsize=6, ncol=3, loc="upper left", bbox_to_anchor=(0, -0.16),
            frameon=False,
        )  # fmt: skip
    else:
        axes.text(0.5, 0.5, "no data", ha="center", transform=axes.transAxes, fontsize=9)


def _legend(template: str, labels: dict[str, str]) -> str:
    return LABEL.sub(lambda match: labels.get(match[1], ""), template)


def _last(values: list[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return finite[-1] if finite else 0.0


def main() -> None:
    """Draw all dashboards."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090", help="URL of a Prometheus")
    parser.add_argument("--minutes", type=float, default=10.0, help="minutes before now that are drawn")
    parser.add_argument("--rate-interval", default="30s", help="range of rates")
    arguments = parser.parse_args()
    now_s = time.time()
    span = Span(now_s - 60 * arguments.minutes, now_s)
    for path in sorted(DASHBOARDS.glob("*.json")):
        sys.stderr.write(f"{draw(path, arguments.prometheus, span, arguments.rate_interval)}\n")


if __name__ == "__main__":
    main()
