"""File descriptors of the process: the limit, and how many each use may take."""

from __future__ import annotations

import resource
from functools import cache

LIMIT_MAX = 1 << 20
"""Where the system sets no limit."""
RESERVE_PART = 8
"""An eighth of the descriptors is for files, threads, and the connections of other services."""


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
