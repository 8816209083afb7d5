"""Models are prepared in threads beside each other: the first manifests may be read at the same time."""

from __future__ import annotations

import subprocess
import sys

import pytest

THREADS = """
import sys, threading
from pathlib import Path
from horologe_gpu_worker.repository.manifest import convert_manifest

sys.setswitchinterval(1e-6)
barrier = threading.Barrier(32)
sizes = []

def read():
    barrier.wait()
    sizes.append(convert_manifest(Path("model.toml"), {"batch_sizes": [1, 2]}).batch_sizes)

threads = [threading.Thread(target=read) for _ in range(32)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert sizes == [(1, 2)] * 32
"""


@pytest.mark.parametrize("attempt", range(10))
def test_the_first_manifests_are_read_by_several_threads(attempt: int) -> None:
    result = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, timeout=60, check=False)
    assert result.returncode == 0, (attempt, result.stderr[-500:])
