"""What `horologe doctor` has to say about one thing."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """`level`: ok; warn: deadlines will be kept less well; fail: it would not run."""

    subject: str
    level: str
    found: str
    hint: str = ""
