"""Temporary folders with paths so short that Unix sockets can be in them."""

from __future__ import annotations

import getpass
import os

SOCKET_PATH_BYTES = 107
"""Longest path of a Unix socket that Linux accepts."""
NAME_BYTES = 31
"""Longest name of a test's folder: pytest shortens names."""
SOCKET_NAME_BYTES = 12


def choose_temporary_folder(folder: str) -> str:
    """Return `folder`, or /tmp if sockets in the `tmp_path` of a test would have longer paths than Linux accepts."""
    return folder if _longest_path(folder) <= SOCKET_PATH_BYTES else "/tmp"


def _longest_path(folder: str) -> int:
    """Return the bytes of the longest path of a socket in a `tmp_path` of pytest-xdist below a folder."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    path = f"{folder}/pytest-of-{user}/pytest-1000/popen-gw10/{'n' * NAME_BYTES}/{'s' * SOCKET_NAME_BYTES}"
    return len(os.fsencode(path))
