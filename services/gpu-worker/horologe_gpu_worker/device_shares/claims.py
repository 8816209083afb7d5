"""Claims on parts of a device: locks that the kernel releases when their process ends."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_held: dict[str, int] = {}
"""Path -> open file of the claims of this process, which keep until it ends."""


def claim_part(folder: Path, part: str) -> bool:
    """Claim a part for this process. Return False if another process has it. Raises OSError for the folder."""
    path = folder / f"{part}.lock"
    if str(path) in _held:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return False
    _held[str(path)] = file
    return True
