"""Memory of large blocks goes back to the system when they are freed."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import psutil
from horologe_common.service.process_limits import return_large_blocks
return_large_blocks()
kept = []
for _ in range(20):
    blocks = []
    for _ in range(8):
        blocks.append(bytes(10_000_000))
        kept.append(bytes(1000))
    del blocks
print(psutil.Process().memory_info().rss // 10**6)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc only")
def test_freed_bodies_leave_no_memory_behind() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 100
