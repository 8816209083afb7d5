"""Tables as plain text, and results as JSON."""

from __future__ import annotations

import math
import os
import platform
import time
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from bench.samples import Figures

COLUMNS = (
    "requests/s",
    "p50 ms",
    "p99 ms",
    "p99.9 ms",
    "ok",
    "refused",
    "late",
    "failed",
    "goodput/s",
    "lateness p99 ms",
    "checked",
    "wrong",
    "cache hits",
)


def row(run: Figures) -> list[str]:
    """The cells below `COLUMNS`."""
    cells = [f"{run.requests_s:.0f}", number(run.p50_ms), number(run.p99_ms), number(run.p999_ms), str(run.in_slo)]
    cells += [str(run.refused), str(run.late), str(run.failed + run.silent), f"{run.goodput_s:.1f}"]
    return [*cells, number(run.lateness_p99_ms), str(run.checked), str(run.wrong), str(run.cache_hits)]


def number(value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"


def text(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table: readable on a terminal and in a committed file alike."""
    lines = [list(map(str, line)) for line in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines]
    cells = [f"| {' | '.join(line)} |" for line in padded]
    return "\n".join([cells[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *cells[1:]])


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def save(path: Path, results: object) -> None:
    """As JSON; what is not a number becomes null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
