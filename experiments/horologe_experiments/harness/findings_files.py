"""Findings as text for terminals and as files: JSON for programs, a Markdown page for people, a figure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from horologe_sim.report.tables import Table, format_cell

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from horologe_experiments.harness.experiment import Bar, Experiment, Findings

MAX_ROWS = 130
"""Longest table of a page. Of a longer one, the page shows every n-th row; the JSON file has all."""
SERIES_ROWS = 40
"""Longest series that a page shows as a table."""


def write_findings(findings: Findings, experiment: Experiment, folder: Path, plot: bool) -> list[Path]:
    """Write `NAME.json`, `NAME.md` and, with `plot`, `NAME.png`. Return their paths.

    Raises ImportError if `plot` is set and matplotlib is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{findings.experiment}.json", folder / f"{findings.experiment}.md"]
    if plot:
        paths.append(folder / f"{findings.experiment}.png")
        experiment.draw(findings).savefig(paths[-1], dpi=110)
    paths[0].write_text(json.dumps(findings_document(findings), indent=1) + "\n")
    paths[1].write_text(findings_page(findings, plot))
    return paths


def findings_document(findings: Findings) -> dict[str, Any]:
    """Return everything that was found, for JSON."""
    document = findings.as_json() | {
        "title": findings.title,
        "seed": findings.seed,
        "quick": findings.quick,
        "facts": findings.facts,
        "series": findings.series,
    }
    return document | ({"cost": findings.cost.describe()} if findings.cost else {})


def findings_page(findings: Findings, plot: bool) -> str:
    """Return the result page of an experiment in Markdown."""
    name = findings.experiment
    length = "--quick, a shortened run" if findings.quick else "full length"
    command = f"horologe experiment {name}{' --quick' if findings.quick else ''} --seed {findings.seed}"
    parts = [f"# {findings.title}", "", f"`{command}` ({length})", ""]
    parts += [f"- {key}: {value}" for key, value in findings.facts.items()]
    if findings.cost:
        parts.append(f"- speed: {findings.cost.describe()}")
    parts += ["", _bar_table(findings.bars).markdown(), ""]
    every = -(-len(findings.rows) // MAX_ROWS)
    parts.append(table_of(findings.rows[::every]).markdown())
    if every > 1:
        parts += ["", f"One of every {every} rows of {len(findings.rows)}. `{name}.json` has all rows."]
    for title, rows in findings.series.items():
        if isinstance(rows, list) and len(rows) <= SERIES_ROWS and rows and isinstance(rows[0], dict):
            parts += ["", f"## {title}", "", table_of(rows).markdown()]
    if plot:
        parts += ["", f"![{findings.title}]({name}.png)"]
    return "\n".join(parts) + "\n"


def findings_text(findings: Findings) -> str:
    """Return title, rows, facts and bars as plain text."""
    facts = [f"{key}: {value}" for key, value in findings.facts.items()]
    if findings.cost:
        facts.append(findings.cost.describe())
    bars = [
        f"{'holds' if bar.holds else 'FAILS'}  {bar.name}: {format_cell(bar.value)}, {bar.sense} {format_cell(bar.bar)}"
        for bar in findings.bars
    ]
    return "\n".join([findings.title, "", *table_of(findings.rows).lines(), "", *facts, "", *bars])


def _bar_table(bars: list[Bar]) -> Table:
    table = Table(("bar", "value", "wanted", "holds"))
    for bar in bars:
        table.add_row(bar.name, bar.value, f"{bar.sense} {format_cell(bar.bar)}", "yes" if bar.holds else "**no**")
    return table


def table_of(rows: Iterable[Mapping[str, Any]], title: str = "") -> Table:
    """Return a table with a column for each key of `rows`, in order of first use. Missing values are empty cells."""
    rows = list(rows)
    table = Table(list(dict.fromkeys(key for row in rows for key in row)), title)
    for row in rows:
        table.add_row(*(row.get(name) for name in table.columns))
    return table
