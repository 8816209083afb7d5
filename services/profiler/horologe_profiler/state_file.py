"""What has been learned, as a file that survives a restart and a kill -9: MessagePack, replaced as a whole."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from horologe_common.service.log import logger
from horologe_profiler.core.measurements import Kept

if TYPE_CHECKING:
    from collections.abc import Callable

VERSION = 1
log = logger("profiler")


class _File(msgspec.Struct, array_like=True):
    """`saved_ns` is of the wall clock: monotonic clocks begin anew with the machine."""

    format: str
    version: int
    saved_ns: int
    kept: Kept


class Store:
    """One file in the state folder; without a folder nothing is kept."""

    def __init__(self, folder: str, name: str, clock: Callable[[], int] = time.time_ns) -> None:
        self._path = Path(folder) / f"profiler-{name}.msgpack" if folder else None
        self._clock = clock
        self._failing = False

    def load(self) -> tuple[Kept, int] | None:
        """What was saved, and how long ago (ns). None if there is nothing that can be read: then a log line says so."""
        if self._path is None or not self._path.exists():
            return None
        try:
            file = msgspec.msgpack.decode(self._path.read_bytes(), type=_File)
            if (file.format, file.version) != ("horologe-profiler", VERSION):
                raise ValueError(f"format: got {file.format!r} version {file.version}, wanted version {VERSION}")
        except (OSError, ValueError, msgspec.MsgspecError, RecursionError) as error:
            log.warning("what was learned cannot be read: starting anew", path=str(self._path), error=str(error))
            return None
        return file.kept, max(0, self._clock() - file.saved_ns)

    def save(self, kept: Kept) -> None:
        """Replace the file; where that cannot be done, say so once, until it can."""
        if self._path is None:
            return
        draft = self._path.with_suffix(f".{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(msgspec.msgpack.encode(_File("horologe-profiler", VERSION, self._clock(), kept)))
            draft.replace(self._path)
            self._failing = False
        except OSError as error:
            if not self._failing:
                log.warning("what was learned is not kept", path=str(self._path), error=str(error))
            self._failing = True
