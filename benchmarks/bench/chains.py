"""The bare chain as a child process: ours (chain.py), or any script that prints the same lines."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec

OURS = Path(__file__).resolve().parents[1] / "chain.py"
_LINE = re.compile(r"clients=(\d+) requests/s=([\d.]+) p50_ms=([\d.]+) p99_ms=([\d.]+)")


class ChainRow(msgspec.Struct, frozen=True):
    clients: int
    requests_s: float
    p50_ms: float
    p99_ms: float


def run(script: Path | None, clients: tuple[int, ...]) -> dict[int, ChainRow]:
    """Rows by number of clients. Raises `RuntimeError` with its output where a row is missing."""
    command = [sys.executable, str(script or OURS), *map(str, clients)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    rows = {}
    for found in _LINE.findall(ended.stdout):
        rows[int(found[0])] = ChainRow(int(found[0]), *map(float, found[1:]))
    if missing := set(clients) - set(rows):
        raise RuntimeError(f"{' '.join(command)}: no row for {sorted(missing)} clients\n{ended.stdout}{ended.stderr}")
    return rows
