"""Benchmark of a CUDA device under Horologe's worker: one table. Needs only PyTorch and numpy, no installation.

    python benchmarks/gpu.py --json gpu.json --markdown gpu.md    # under ten minutes on an H100 or H200
    python benchmarks/gpu.py --cpu                                # the same code on an emulated device, in a minute

A failed section becomes a row with the error, and the exit code is 1. `--tests` runs tests/gpu first.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import platform
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ("benchmarks", "services/gpu-worker", "libs/common")]

import torch

from bench_gpu.addresses import addresses
from bench_gpu.execs import concurrency, distribution, eager
from bench_gpu.figures import Row, row, table
from bench_gpu.goodput import goodput
from bench_gpu.loads import ceilings, copies, loads
from bench_gpu.pretend import pretend_cuda
from bench_gpu.rig import Rig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SECTIONS: dict[str, Callable[[Rig], Iterator[Row]]] = {
    "ceilings": ceilings,
    "distribution": distribution,
    "eager": eager,
    "loads": loads,
    "copies": copies,
    "addresses": addresses,
    "concurrency": concurrency,
    "goodput": goodput,
}
PRETEND_EFFORT = 0.004
TESTS_S = 120
ALL_SKIPPED = 5
"""pytest's exit code if no test ran, because there is no device."""
SWITCH_INTERVAL_S = 0.0002
"""Interpreter switch interval, as in the worker: threads that compute in Python yield this often."""


def measure(rig: Rig, names: list[str], limit_s: float) -> Iterator[list[Row]]:
    """Yield the rows of each section. A failed section, or one after the time limit, is a row with the reason."""
    start = time.monotonic()
    for name in names:
        rows: list[Row] = []
        gc.collect()
        say(f"{time.monotonic() - start:5.0f} s  {name}")
        try:
            for entry in [] if time.monotonic() > start + limit_s else SECTIONS[name](rig):
                rows.append(entry)
                say(f"           {entry.section}: {entry.case}")
                if time.monotonic() > start + limit_s:
                    break
        except Exception as error:  # run the other sections: the device may be lent only once
            traceback.print_exc()
            rows.append(row(name, "FAILED", error=f"{type(error).__name__}: {str(error)[:300]}"))
        if time.monotonic() > start + limit_s:
            rows.append(row(name, "FAILED", error=f"cut short: the limit of {limit_s:.0f} s has passed"))
        yield rows


def machine(rig: Rig, revision: str) -> dict[str, Any]:
    """Return what was measured, on which machine and when."""
    facts: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "revision": revision or _git("rev-parse", "--short", "HEAD"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "arithmetic": "FP16" if rig.half else "FP32 (convolutions may use TF32)",
    }
    if rig.pretend:
        return {"device": "pretend (CPU)", **facts}
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "memory_gb": round(properties.total_memory / 1e9, 1),
        "cuda": torch.version.cuda,
        "driver": _driver(),
        **facts,
    }


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"unknown: {error}"


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure a CUDA device under Horologe's worker.")
    parser.add_argument("--cpu", action="store_true", help="run tiny networks on an emulated device")
    parser.add_argument("--half", action="store_true", help="networks in FP16")
    parser.add_argument("--sections", default=",".join(SECTIONS), help=f"some of {', '.join(SECTIONS)}")
    parser.add_argument("--effort", type=float, default=1.0, help="fraction of the samples to take")
    parser.add_argument("--limit", type=float, default=380, help="time limit in seconds")
    parser.add_argument("--json", type=Path, help="write machine and rows here")
    parser.add_argument("--markdown", type=Path, help="write the table here")
    parser.add_argument("--revision", default="", help="revision to report, if git is not available")
    parser.add_argument("--tests", action="store_true", help="run tests/gpu first")
    options = parser.parse_args(arguments)
    if not options.cpu and not torch.cuda.is_available():
        parser.error("no CUDA device (--cpu runs the same code on an emulated one)")
    tests = [sys.executable, "-m", "pytest", "-q", str(ROOT / "tests/gpu")]
    failed = options.tests and _run_tests(tests) not in (0, ALL_SKIPPED)
    rows: list[Row] = []
    with pretend_cuda() if options.cpu else contextlib.nullcontext():
        torch.set_num_threads(1)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        gc.disable()  # a full collection takes tens of milliseconds; the worker collects when it is idle
        rig = Rig(options.cpu, PRETEND_EFFORT if options.cpu else options.effort, options.half, tiny=options.cpu)
        facts = machine(rig, options.revision)
        for section_rows in measure(rig, options.sections.split(","), options.limit):
            rows += section_rows
            write(options, facts, rows)  # after every section, in case the run is cut off
    print(report(facts, rows))
    return int(failed or any(entry.case == "FAILED" for entry in rows))


def _run_tests(command: list[str]) -> int:
    try:
        return subprocess.run(command, cwd=ROOT, check=False, timeout=TESTS_S).returncode
    except subprocess.TimeoutExpired:
        say(f"tests: not finished after {TESTS_S} s")
        return 1


def report(facts: dict[str, Any], rows: list[Row]) -> str:
    return "\n".join([", ".join(f"{key} {value}" for key, value in facts.items()), "", table(rows)])


def write(options: argparse.Namespace, facts: dict[str, Any], rows: list[Row]) -> None:
    if options.markdown:
        options.markdown.write_text(report(facts, rows) + "\n")
    if options.json:
        options.json.write_text(json.dumps({"machine": facts, "rows": [entry._asdict() for entry in rows]}, indent=1))


if __name__ == "__main__":
    sys.exit(main())
