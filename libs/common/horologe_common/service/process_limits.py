"""What this process may use and keeps: file descriptors, freed memory, and memory that others may not read."""

from __future__ import annotations

import ctypes
import resource
import sys
from functools import cache

LIMIT_MAX = 1 << 20
"""Where the system sets no limit."""
RESERVE_PART = 8
"""An eighth of the descriptors is for files, threads, and the connections of other services."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
MAPPED_FROM, KEPT = 4 << 20, 64 << 20
"""Blocks from 4 MB on are mapped of their own and unmapped when they are freed. Free memory up to 64 MB at the end of
the heap is kept. glibc moves the first bound to 32 MB once a program frees such a block (mallopt(3)): the next blocks
lie in the heap, and one small object behind them keeps all of them resident."""
PR_SET_DUMPABLE = 4


@cache
def raise_limit() -> int:
    """Raise the soft limit of open files to the hard limit. Return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = LIMIT_MAX if hard == resource.RLIM_INFINITY else min(hard, LIMIT_MAX)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit


def at_most(wanted: int, eighths: int) -> int:
    """Return `wanted` connections, or as many as these eighths of the descriptors permit.

    HTTP gets four eighths, clients without keys, clients with keys and services one each.
    """
    return max(1, min(wanted, raise_limit() * eighths // RESERVE_PART))


def return_large_blocks() -> None:
    """Have large freed blocks returned to the system. Does nothing where the C library has no `mallopt`."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MAPPED_FROM)
        mallopt(M_TRIM_THRESHOLD, KEPT)


def protect_memory() -> None:
    """Make environment and memory of this process unreadable for other processes of its user, except root's (Linux).

    Settings in the environment may hold passwords, and the code of models often runs as the same user. The kernel then
    also writes no core dump.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
