"""Emulated devices whose shares are worker processes of one host: a memory-mapped file holds their activity.

Each process owns a slot of the file while it holds the lock on it. The kernel releases the lock of a process that dies,
and the next process may take the slot.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

from horologe_common.interference.colocation import LastExecution
from horologe_common.service.settings import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SLOT = struct.Struct("<q2q11dq")
"""Finished writes; begin and end in ns; busy fraction; the fields of `Alone`; begun writes.

Readers read from left to right. The owner counts a write at the right, writes, and counts it at the left: a reader that
sees the same number twice has seen no part of another write."""
SLOTS = 64
"""More than the 40 shares of 2.5% that a device can have."""
FILE_BYTES = SLOTS * SLOT.size
ATTEMPTS = 3
"""Attempts to read a slot that its owner is writing. Then the slot is skipped: the owner is between two executions."""
LOCK = struct.Struct("hhqqi4x")
"""`struct flock` of Linux on 64-bit machines: type, whence, start, length, pid."""


class EmulatedDeviceFile:
    """One share's view of an emulated device. `close` gives the slot back."""

    def __init__(self, path: Path) -> None:
        """Open or create the file and take a free slot. Raises SettingsError if there is none, or for another file."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SettingsError(
                f"emulated device {path}: {error.strerror}, wanted a file that can be written"
            ) from error
        try:
            size = os.fstat(self._file).st_size
            if size not in (0, FILE_BYTES):
                raise SettingsError(f"emulated device {path}: got {size} bytes, wanted {FILE_BYTES}, or no file")
            os.ftruncate(self._file, FILE_BYTES)
            self._slot = self._lock_slot(path)
        except BaseException:
            os.close(self._file)
            raise
        self._map = mmap.mmap(self._file, FILE_BYTES)
        self._writes = SLOT.unpack_from(self._map, self._slot * SLOT.size)[-1]
        self.publish(LastExecution())

    def own(self) -> LastExecution:
        """Return the activity that this share has published last."""
        return self._own

    def neighbours(self) -> Iterator[LastExecution]:
        """Yield the activity of each other share. A share whose process has died becomes idle with time."""
        for slot in range(SLOTS):
            if slot != self._slot and (activity := self._read(slot)) is not None:
                yield activity

    def publish(self, activity: LastExecution) -> None:
        """Replace the activity of this share."""
        self._own = activity
        self._writes += 1
        begin_ns, end_ns, busy, alone = activity
        place = self._slot * SLOT.size
        struct.pack_into("<q", self._map, place + SLOT.size - 8, self._writes)
        struct.pack_into("<2q11d", self._map, place + 8, begin_ns, end_ns, busy, *alone)
        struct.pack_into("<q", self._map, place, self._writes)

    def close(self) -> None:
        """Give the slot to others."""
        with suppress(BufferError):
            self._map.close()
        os.close(self._file)

    def _read(self, slot: int) -> LastExecution | None:
        for _ in range(ATTEMPTS):
            finished, begin_ns, end_ns, busy, *alone, begun = SLOT.unpack_from(self._map, slot * SLOT.size)
            if begun == finished:
                return LastExecution(begin_ns, end_ns, busy, tuple(alone)) if end_ns else None
        return None

    def _lock_slot(self, path: Path) -> int:
        """Lock the first free slot. The lock belongs to the open file, not to the process: several may be in one."""
        for slot in range(SLOTS):
            with suppress(BlockingIOError):
                lock = LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, slot * SLOT.size, SLOT.size, 0)
                fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, lock)
                return slot
        raise SettingsError(f"emulated device {path}: got {SLOTS} shares, wanted fewer")
