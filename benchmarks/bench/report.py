"""Results of benchmarks: bars that a value must reach, rows of tables, JSON files."""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import msgspec

from horologe_sim.report.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horologe_load.samples import LoadSummary

BAR_COLUMNS = ("bar", "value", "wanted", "holds", "detail")
RUN_COLUMNS = (
    "requests/s",
    "p50 ms",
    "p99 ms",
    "p99.9 ms",
    "ok",
    "refused",
    "late",
    "failed",
    "goodput/s",
    "delay p99 ms",
    "checked",
    "wrong",
    "cache hits",
)


class Bar(msgspec.Struct, frozen=True):
    """A promise about speed: `value` must be at most, or at least, `limit`. With sense "" it is only reported.

    `detail` says what the value is made of.
    """

    name: str
    value: float
    sense: Literal["<=", ">=", ""] = ""
    limit: float = 0.0
    unit: str = ""
    detail: str = ""

    @property
    def holds(self) -> bool:
        """Return True if the promise is kept. NaN, a value that could not be measured, keeps none."""
        if not self.sense:
            return True
        if math.isnan(self.value):
            return False
        return self.value <= self.limit if self.sense == "<=" else self.value >= self.limit


def bar_row(bar: Bar) -> list[str]:
    """Return the cells below `BAR_COLUMNS`."""
    wanted = f"{bar.sense} {format_number(bar.limit)} {bar.unit}".strip() if bar.sense else ""
    value = f"{format_number(bar.value)} {bar.unit}".strip()
    holds = ("yes" if bar.holds else "NO") if bar.sense else ""
    return [bar.name, value, wanted, holds, bar.detail]


def run_row(run: LoadSummary) -> list[str]:
    """Return the cells below `RUN_COLUMNS`."""
    times = (run.p50_ms, run.p99_ms, run.p999_ms)
    counts = (run.in_time, run.refused, run.late, run.failed + run.unanswered + run.unsent)
    checks = (run.checked, run.wrong, run.cached)
    return [
        f"{run.throughput:.0f}",
        *map(format_number, times),
        *map(str, counts),
        f"{run.goodput:.1f}",
        format_number(run.delay_p99_ms),
        *map(str, checks),
    ]


def format_number(value: float) -> str:
    """Return two decimals below 100, none above, `-` for NaN."""
    if math.isnan(value):
        return "-"
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"


def markdown(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a padded Markdown table, which reads well on a terminal and in a file."""
    table = Table(columns, left=len(columns))
    for row in rows:
        table.add_row(*map(str, row))
    return table.markdown(padded=True)


def run_document(run: LoadSummary) -> dict[str, Any]:
    """Return a summary with its derived values, for JSON."""
    derived = {"attained": run.attained, "throughput": run.throughput, "goodput": run.goodput}
    return {**msgspec.to_builtins(run), **derived}


def end_with(result: dict[str, Any], file: Path | None) -> NoReturn:
    """Print the result as JSON, write it to the file, and end the process: with 1 if it has violations."""
    text = json.dumps(result, indent=1)
    print(text)
    if file:
        file.write_text(text + "\n")
    raise SystemExit(int(any(result["violations"].values())))


def describe_machine() -> dict[str, Any]:
    """Return processor, cores, system, Python, load average and the time, for the JSON file of a benchmark."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def print_machine(machine: dict[str, Any]) -> None:
    """Print the processor, the cores and the system in one line."""
    print(
        "{processor}, {cores} cores; {system}, Python {python}; load before {load_before:.2f}; {at}".format(**machine)
    )


def _processor() -> str:
    """Return the model name of the processor, with its family and stepping, which tell apart equal names."""
    fields: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            fields.setdefault(name.strip(), value.strip())
    numbers = [f"{name} {fields[name]}" for name in ("cpu family", "model", "cpu MHz") if name in fields]
    return ", ".join([fields.get("model name") or platform.processor() or "unknown processor", *numbers])


def save_json(path: Path, results: object) -> None:
    """Write results as JSON. NaN becomes null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results, enc_hook=str), indent=1) + b"\n")
