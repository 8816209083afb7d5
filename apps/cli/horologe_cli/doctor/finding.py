"""Findings of `horologe doctor`."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """Result of one check. `level`: ok; warn: more deadlines will be missed; fail: Horologe cannot run."""

    subject: str
    level: str
    found: str
    hint: str = ""


def graded(subject: str, good: bool, found: str, hint: str) -> Finding:
    """Return a finding of level ok, or a warning with a hint."""
    return Finding(subject, "ok", found) if good else Finding(subject, "warn", found, hint)
