"""Memory in which batches are built: the workspace of a lane, and the arena of a device's batches."""

from __future__ import annotations

from bisect import bisect_left
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector register. Runtimes expect this alignment of their inputs."""
ARENA_ALIGNMENT = 256
"""Bytes: the alignment of CUDA's own allocators."""


class Workspace:
    """Memory in which one lane builds its batches. A share runs one EXEC at a time, so one workspace serves all models.

    The workspace grows when a model is loaded, not while a batch is built, unless a batch is larger than the profile's.
    It never shrinks. `space` is aligned memory to start with.
    """

    def __init__(self, space: NDArray[np.uint8] | None = None) -> None:
        self._space: NDArray[np.uint8] = _aligned_array(0) if space is None else space
        self._used = 0

    def reserve(self, size: int) -> None:
        """Grow to at least `size` bytes. Arrays allocated before keep the old memory alive."""
        if size > len(self._space):
            self._space = _aligned_array(size)

    def reset(self) -> None:
        """Start the next batch. Memory allocated before may be overwritten."""
        self._used = 0

    def allocate(self, size: int) -> NDArray[np.uint8]:
        """Return `size` aligned bytes, not initialised."""
        begin = self._used
        self._used = begin + aligned_size(size)
        if self._used > len(self._space):
            self.reserve(2 * self._used)
        return self._space[begin : begin + size]

    def may_contain(self, array: NDArray[Any]) -> bool:
        """Return True if the array may lie in this workspace."""
        return np.may_share_memory(array, self._space)


def aligned_size(size: int, alignment: int = ALIGNMENT) -> int:
    """Return `size` rounded up to the alignment."""
    return -(-size // alignment) * alignment


def _aligned_array(size: int) -> NDArray[np.uint8]:
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    offset = -raw.ctypes.data % ALIGNMENT
    return raw[offset : offset + size]


class Arena:
    """Allocator for [0, size): first fit, each piece freed separately, from any thread.

    Invariant: pieces and gaps cover [0, size) without overlap, and no two gaps are adjacent.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._gaps: list[tuple[int, int]] = [(0, size)] if size else []
        self._pieces: dict[int, int] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._pieces)

    def allocate(self, size: int) -> int | None:
        """Allocate `size` bytes (at least 1, rounded up to the alignment). Returns the offset; None if no gap is large
        enough.
        """
        size = aligned_size(max(1, size), ARENA_ALIGNMENT)
        with self._lock:
            for index, (begin, end) in enumerate(self._gaps):
                if end - begin >= size:
                    self._gaps[index : index + 1] = [(begin + size, end)] if end - begin > size else []
                    self._pieces[begin] = begin + size
                    return begin
        return None

    def free(self, begin: int) -> None:
        """Free the piece that begins at `begin`."""
        with self._lock:
            end = self._pieces.pop(begin)
            index = bisect_left(self._gaps, (begin, end))
            if index < len(self._gaps) and self._gaps[index][0] == end:
                end = self._gaps.pop(index)[1]
            if index and self._gaps[index - 1][1] == begin:
                index -= 1
                begin = self._gaps.pop(index)[0]
            self._gaps.insert(index, (begin, end))

    def check(self) -> None:
        spans = sorted([*self._gaps, *self._pieces.items()])
        assert [begin for begin, _ in spans] == [0, *(end for _, end in spans)][: len(spans)]
        assert not spans or spans[-1][1] == self.size
        assert all(before[1] < after[0] for before, after in zip(self._gaps, self._gaps[1:], strict=False))
