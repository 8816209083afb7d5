"""Findings as files: JSON for programs, Markdown for people, a figure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from horologe_sim.report.tables import Table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from horologe_experiments.harness.experiment import Bar, Experiment, Findings

LONGEST = 40
"""Rows of a table on a page; of longer ones every n-th is shown, and the JSON has them all."""


def write(findings: Findings, experiment: Experiment, folder: Path, plot: bool) -> list[Path]:
    """`NAME.json`, `NAME.md` and with `plot` `NAME.png` in `folder`. Raises ImportError without matplotlib."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / f"{findings.experiment}.json", folder / f"{findings.experiment}.md"]
    if plot:
        written.append(folder / f"{findings.experiment}.png")
        experiment.draw(findings).savefig(written[-1], dpi=110)
    written[0].write_text(json.dumps(document(findings), indent=1) + "\n")
    written[1].write_text(page(findings, plot))
    return written


def document(findings: Findings) -> dict[str, Any]:
    """Everything that was found, as JSON can say it."""
    cost = {"cost": findings.cost.told()} if findings.cost else {}
    return (
        findings.as_json()
        | {
            "title": findings.title,
            "seed": findings.seed,
            "quick": findings.quick,
            "facts": findings.facts,
            "series": findings.series,
        }
        | cost
    )


def page(findings: Findings, plot: bool) -> str:
    """The result page of an experiment."""
    name = findings.experiment
    length = "--quick, a shortened run" if findings.quick else "full length"
    command = f"horologe experiment {name}{' --quick' if findings.quick else ''} --seed {findings.seed}"
    parts = [f"# {findings.title}", "", f"`{command}` ({length})", ""]
    parts += [f"- {key}: {value}" for key, value in findings.facts.items()]
    if findings.cost:
        parts.append(f"- speed: {findings.cost.told()}")
    parts += ["", "| bar | value | wanted | holds |", "| --- | ---: | ---: | --- |", *map(_bar, findings.bars), ""]
    every = -(-len(findings.rows) // LONGEST)
    parts += table(findings.rows[::every])
    if every > 1:
        parts += ["", f"Every {every}th row of {len(findings.rows)}; `{name}.json` has them all."]
    for title, rows in findings.series.items():
        if isinstance(rows, list) and len(rows) <= LONGEST and rows and isinstance(rows[0], dict):
            parts += ["", f"## {title}", "", *table(rows)]
    if plot:
        parts += ["", f"![{findings.title}]({name}.png)"]
    return "\n".join(parts) + "\n"


def text(findings: Findings) -> str:
    """All of it for a terminal."""
    columns = list(dict.fromkeys(key for row in findings.rows for key in row))
    rows = Table(columns)
    for row in findings.rows:
        rows.add_row(*(_cell(row.get(key)) for key in columns))
    parts = [findings.title, "", *rows.lines(), "", *(f"{key}: {value}" for key, value in findings.facts.items())]
    if findings.cost:
        parts.append(findings.cost.told())
    bars = [
        f"{'holds' if bar.holds else 'FAILS'}  {bar.name}: {_cell(bar.value)}, {bar.sense} {_cell(bar.bar)}"
        for bar in findings.bars
    ]
    return "\n".join([*parts, "", *bars])


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A Markdown table; rows may lack columns."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = ["| " + " | ".join(columns) + " |", "| " + " | ".join("---" for _ in columns) + " |"]
    return lines + ["| " + " | ".join(_cell(row.get(key)) for key in columns) + " |" for row in rows]


def _bar(bar: Bar) -> str:
    return f"| {bar.name} | {_cell(bar.value)} | {bar.sense} {_cell(bar.bar)} | {'yes' if bar.holds else '**no**'} |"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.7g}" if isinstance(value, float) else str(value)
