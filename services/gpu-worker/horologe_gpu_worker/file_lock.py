"""Locks between processes: claims on parts of a device, and turns to measure a model."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def lock_file(path: Path) -> int | None:
    """Lock a file, which is created if it is missing. Raises OSError for its folder.

    Return its descriptor: the lock lasts until that is closed, or its process ends. None if the file is locked, also if
    this process has locked it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file
