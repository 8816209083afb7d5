"""Controls: programs that use the cores beside the client and send nothing to the system.

An attack at full speed uses a core itself and keeps the system busy on another. On a machine of two cores, no more can
be asked of the system than what it does beside two such programs.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from bench_attacks.attack import Attack

if TYPE_CHECKING:
    from bench_attacks.attack import Clock, Doors

STEP = 10_000


def _two_programs(_doors: Doors, clock: Clock) -> int:
    """Keep two processes busy. Return the number of steps of one of them."""
    other, steps = subprocess.Popen([sys.executable, "-c", "while True: pass"]), 0
    try:
        while clock.running():
            for _ in range(STEP):
                steps += 1
    finally:
        other.kill()
        other.wait()
    return steps


CONTROLS = tuple(
    Attack(f"two-programs-{door}", door, "two programs use the cores and send nothing", _two_programs, 1)
    for door in ("sdk", "http")
)
