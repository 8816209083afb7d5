"""How many bytes of inputs and outputs a worker holds (Clockwork's IOCache), and the space batches are built in."""

from __future__ import annotations

from bisect import bisect_left
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

ALIGNMENT = 64
"""A cache line, and the widest vector register: what runtimes like their inputs aligned to."""
ARENA_ALIGNMENT = 256
"""What device memory is aligned to by its own allocators."""


class IoCache:
    """Byte accounting by action. Law: `held_bytes` is the sum over the holders and at most `limit_bytes`."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._held: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._held)

    def acquire(self, action_id: int, size: int) -> bool:
        """Count `size` more bytes for the action; False, and nothing counted, when that would pass the limit."""
        if self.held_bytes + size > self.limit_bytes:
            return False
        self.held_bytes += size
        self._held[action_id] = self._held.get(action_id, 0) + size
        return True

    def release(self, action_id: int) -> None:
        """All bytes of the action are free again."""
        self.held_bytes -= self._held.pop(action_id, 0)

    def check(self) -> None:
        assert self.held_bytes == sum(self._held.values()) <= self.limit_bytes


class Workspace:
    """Memory in which one lane builds its batches. One EXEC at a time per share, so one serves all models.

    It grows when a model is loaded, never in the hot path, and does not shrink. `space`: aligned memory to begin with.
    """

    def __init__(self, space: NDArray[np.uint8] | None = None) -> None:
        self._space: NDArray[np.uint8] = _aligned(0) if space is None else space
        self._used = 0

    def reserve(self, size: int) -> None:
        """Make room for batches of `size` bytes in all. Arrays given out before keep the old space alive."""
        if size > len(self._space):
            self._space = _aligned(size)

    def clear(self) -> None:
        """Begin the next batch: what `take` gave out before may be overwritten from now on."""
        self._used = 0

    def take(self, size: int) -> NDArray[np.uint8]:
        """`size` bytes, aligned, with whatever was in them before."""
        begin = self._used
        self._used = begin + room(size)
        if self._used > len(self._space):
            self.reserve(2 * self._used)
        return self._space[begin : begin + size]

    def holds(self, array: NDArray[Any]) -> bool:
        """True if the array may lie in this space."""
        return np.may_share_memory(array, self._space)


def room(size: int, alignment: int = ALIGNMENT) -> int:
    """Bytes that an array of `size` bytes takes in a workspace."""
    return -(-size // alignment) * alignment


def _aligned(size: int) -> NDArray[np.uint8]:
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    offset = -raw.ctypes.data % ALIGNMENT
    return raw[offset : offset + size]


class Arena:
    """Pieces of [0, size), first fit, each freed on its own; from any thread.

    Law: pieces and gaps cover [0, size) without overlap, and no two gaps are neighbours.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._gaps: list[tuple[int, int]] = [(0, size)] if size else []
        self._pieces: dict[int, int] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._pieces)

    def allocate(self, size: int) -> int | None:
        """Where a piece of `size` bytes (at least 1; rounded up to the alignment) begins; None where none fits."""
        size = room(max(1, size), ARENA_ALIGNMENT)
        with self._lock:
            for index, (begin, end) in enumerate(self._gaps):
                if end - begin >= size:
                    self._gaps[index : index + 1] = [(begin + size, end)] if end - begin > size else []
                    self._pieces[begin] = begin + size
                    return begin
        return None

    def free(self, begin: int) -> None:
        """Take back the piece that begins there."""
        with self._lock:
            end = self._pieces.pop(begin)
            at = bisect_left(self._gaps, (begin, end))
            if at < len(self._gaps) and self._gaps[at][0] == end:
                end = self._gaps.pop(at)[1]
            if at and self._gaps[at - 1][1] == begin:
                at -= 1
                begin = self._gaps.pop(at)[0]
            self._gaps.insert(at, (begin, end))

    def check(self) -> None:
        spans = sorted([*self._gaps, *self._pieces.items()])
        assert [begin for begin, _ in spans] == [0, *(end for _, end in spans)][: len(spans)]
        assert not spans or spans[-1][1] == self.size
        assert all(before[1] < after[0] for before, after in zip(self._gaps, self._gaps[1:], strict=False))
