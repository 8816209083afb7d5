"""Files and functions that the pages about the architecture name in tables exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
LINK = re.compile(r"\[[^\]]*\]\((\.\./\S+\.py)\)")
NAME = re.compile(r"`([A-Za-z_][\w.]*)`")
ROW = re.compile(r"^\| (.+) \|$", re.MULTILINE)


def test_architecture_answers_at_least_20_questions() -> None:
    _, _, section = (DOCS / "architecture.md").read_text(encoding="utf-8").partition("## Where do I find")
    questions = re.findall(r"^\| (.+?\?.*?) \|", section.partition("\n## ")[0], re.MULTILINE)
    assert len(set(questions)) == len(questions) >= 20


@pytest.mark.parametrize("page", ["architecture.md", "request-path.md", "pipeline-query.md", "plan.md"])
def test_functions_in_tables_are_defined_in_the_linked_file(page: str) -> None:
    for row in ROW.findall((DOCS / page).read_text(encoding="utf-8")):
        cells = row.split(" | ")
        for position, cell in enumerate(cells):
            if not (link := LINK.search(cell)):
                continue
            module = (DOCS / link[1]).resolve()
            assert module.exists(), f"{page}: {link[1]} does not exist"
            beside = cell if position == len(cells) - 1 else cells[position + 1]
            unknown = {name for name in NAME.findall(beside) if name not in _definitions(module)}
            assert not unknown, f"{page}: {link[1]} does not define {', '.join(sorted(unknown))}"


def _definitions(module: Path) -> set[str]:
    """Return the names of a module's classes, functions and variables, and `Class.method` for methods."""
    names = set()
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {
                f"{node.name}.{child.name}"
                for child in node.body
                if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            }
    return names
