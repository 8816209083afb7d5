"""The bare chain as a child process: `chain.py`, or any script that prints the same lines."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec

DEFAULT_SCRIPT = Path(__file__).resolve().parents[1] / "chain.py"
_LINE = re.compile(r"clients=(\d+) requests/s=([\d.]+) p50_ms=([\d.]+) p99_ms=([\d.]+)")


class ChainRow(msgspec.Struct, frozen=True):
    """Throughput and latency of the chain with `clients` requests in flight."""

    clients: int
    requests_s: float
    p50_ms: float
    p99_ms: float


def run_chain(script: Path | None, clients: tuple[int, ...]) -> dict[int, ChainRow]:
    """Return rows by number of clients. Raises `RuntimeError` with the script's output if a row is missing."""
    command = [sys.executable, str(script or DEFAULT_SCRIPT), *map(str, clients)]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    rows = {}
    for fields in _LINE.findall(completed.stdout):
        rows[int(fields[0])] = ChainRow(int(fields[0]), *map(float, fields[1:]))
    if missing := set(clients) - set(rows):
        raise RuntimeError(
            f"{' '.join(command)}: no row for {sorted(missing)} clients\n{completed.stdout}{completed.stderr}"
        )
    return rows
