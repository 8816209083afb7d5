"""Standard output and error that neither fail nor wait: a process must not depend on whoever reads its log.

A pipe whose reader has ended, a full disk and a terminal that is paused would otherwise raise errors in any code that
prints, or stop it.
"""

from __future__ import annotations

import io
import os
import select
import sys
from typing import Any, TextIO

WAIT_MS = 100
"""A write waits so long for a reader that does not read. While the reader still does not read, later ones do not."""
CHUNK_BYTES = select.PIPE_BUF
"""A pipe that is ready takes as many bytes at once."""


class LossyFile(io.FileIO):
    """Writes to a descriptor. Bytes that cannot be written, or not in time, are dropped and counted."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.lost_bytes = 0
        self._is_read = True
        """The last write succeeded."""
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    def write(self, data: Any) -> int:
        """Write or drop the bytes. Return their number."""
        view = memoryview(data).cast("B")
        for begin in range(0, len(view), CHUNK_BYTES):
            if not self._write_chunk(view[begin : begin + CHUNK_BYTES]):
                self.lost_bytes += len(view) - begin
                break
        return len(view)

    def _write_chunk(self, chunk: memoryview) -> bool:
        try:
            is_ready = self._poll.poll(WAIT_MS if self._is_read else 0)
            self._is_read = bool(is_ready) and super().write(chunk) == len(chunk)
        except OSError:  # the reader has ended, or the disk is full
            self._is_read = False
        return self._is_read


_files: list[LossyFile] = []


def install_lossy_streams() -> None:
    """Replace `sys.stdout` and `sys.stderr`. Descriptors that the process was started without become /dev/null.

    Call it first: other files would get these descriptors. Streams that a test has replaced stay.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free descriptor is this one
    if sys.stdout is sys.__stdout__:
        sys.stdout = _open_lossy(1, sys.stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _open_lossy(2, sys.stderr)


def lost_bytes() -> int:
    """Return the bytes of the log that were dropped."""
    return sum(file.lost_bytes for file in _files)


def _open_lossy(descriptor: int, stream: TextIO | None) -> TextIO:
    file = LossyFile(descriptor)
    _files.append(file)
    encoding = stream.encoding if stream else "utf-8"
    return io.TextIOWrapper(io.BufferedWriter(file), encoding, "backslashreplace", line_buffering=True)
