"""The table "Where do I find …" of docs/architecture.md names files and functions that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
ROW = re.compile(r"^\| (.+?) \| \[[^\]]*\]\((\S+)\)(?: `([\w.]+)`)? \|$", re.MULTILINE)
ROWS = ROW.findall(PAGE.read_text(encoding="utf-8").partition("## Where do I find")[2].partition("\n## ")[0])


def test_the_table_answers_at_least_20_questions() -> None:
    assert len({question for question, _, _ in ROWS}) == len(ROWS) >= 20


@pytest.mark.parametrize(("question", "link", "name"), ROWS)
def test_each_row_names_an_existing_function(question: str, link: str, name: str) -> None:
    target = (PAGE.parent / link).resolve()
    assert target.exists(), f"{question} {link}: no such file"
    if name:
        assert name in _definitions(target), f"{question} {link}: does not define {name}"


def _definitions(module: Path) -> set[str]:
    """Return the names of a module's classes and functions, and `Class.method` for methods."""
    names = set()
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {
                f"{node.name}.{child.name}"
                for child in node.body
                if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            }
    return names
