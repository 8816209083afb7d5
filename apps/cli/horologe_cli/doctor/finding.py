"""Findings of `horologe doctor`, and the reading of files that they come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path


class Finding(NamedTuple):
    """Result of one check. `level`: ok; warn: more deadlines will be missed; fail: Horologe cannot run."""

    subject: str
    level: str
    found: str
    hint: str = ""


def graded(subject: str, good: bool, found: str, hint: str) -> Finding:
    """Return a finding of level ok, or a warning with a hint."""
    return Finding(subject, "ok", found) if good else Finding(subject, "warn", found, hint)


def read_text(file: Path) -> str:
    """Return the text of a file without surrounding white space; empty if it cannot be read."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def read_fields(file: Path) -> dict[str, int]:
    """Return the numbers of a file with lines of a name and a number, as in /proc/meminfo, by name."""
    lines = (line.replace(":", " ").split() for line in read_text(file).splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}
