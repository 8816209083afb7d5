"""Claims on parts of a device: locks on files that the kernel releases when their process ends."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def claim(path: Path) -> int | None:
    """Lock a file, which is created if it is missing, for this process. Raises OSError for its folder.

    Return its descriptor: the claim lasts until that is closed. None if the file is locked, also by this process.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file
