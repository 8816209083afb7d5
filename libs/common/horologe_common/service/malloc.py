"""Settings of the C library's allocator, so that large requests leave no memory behind."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
MAPPED_FROM, KEPT = 4 << 20, 64 << 20
"""Blocks from 4 MB on are mapped of their own and unmapped when they are freed. Free memory up to 64 MB at the end of
the heap is kept. glibc moves the first bound to 32 MB once a program frees such a block (mallopt(3)): the next blocks
lie in the heap, and one small object behind them keeps all of them resident."""


def return_large_blocks() -> None:
    """Fix both bounds. Does nothing where the C library has no `mallopt`."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MAPPED_FROM)
        mallopt(M_TRIM_THRESHOLD, KEPT)
