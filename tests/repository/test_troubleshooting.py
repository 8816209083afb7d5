"""Rows of the troubleshooting page name metrics that exist, log lines that services write, causes and remedies."""

from __future__ import annotations

import re
from pathlib import Path

from horologe_common.metrics.metric_definitions import METRICS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operators" / "troubleshooting.md").read_text(encoding="utf-8")
HEAD = ["metric", "log line", "cause", "remedy"]
NONE = "-"


def rows() -> list[list[str]]:
    found = []
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and cells not in (HEAD, ["---"] * 4):
            found.append(cells)
    return found


def test_every_symptom_has_a_table() -> None:
    for section in PAGE.split("\n## ")[1:]:
        assert "| metric | log line | cause | remedy |" in section, section.splitlines()[0]
    assert len(rows()) > 30


def test_every_row_is_complete() -> None:
    for row in rows():
        assert len(row) == len(HEAD), row
        assert all(row), row
        assert min(len(row[2]), len(row[3])) > 5, row


def test_metrics_and_their_labels_exist() -> None:
    for row in rows():
        for name, labels in re.findall(r"`((?:horologe|nv|process)_\w+)(\{[^}]*\})?`", " ".join(row)):
            assert name in METRICS, name
            assert set(re.findall(r"(\w+)=", labels)) <= set(METRICS[name].labels), (name, labels)
        if row[0] != NONE:
            assert re.search(r"`(horologe|nv|process)_\w+", row[0]), row


def test_log_lines_are_written_by_services() -> None:
    sources = "\n".join(
        path.read_text(encoding="utf-8") for folder in ("libs", "services") for path in (ROOT / folder).rglob("*.py")
    )
    for row in rows():
        for line in re.findall(r"`([^`]+)`", row[1]):
            assert re.search(rf"[\"']{re.escape(line)}", sources), line
