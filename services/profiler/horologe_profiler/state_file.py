"""State file: measurements in MessagePack that survive a restart and a kill -9. The file is replaced as a whole."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from horologe_common.service.log import logger
from horologe_profiler.core.measurements import ProfilerState

if TYPE_CHECKING:
    from collections.abc import Callable

VERSION = 1
log = logger("profiler")


class _StateRecord(msgspec.Struct, array_like=True):
    """Content of the file. `saved_ns` is wall-clock time, because monotonic clocks restart with the machine."""

    format: str
    version: int
    saved_ns: int
    kept: ProfilerState


class StateFile:
    """The state file in the state folder. Without a folder nothing is stored."""

    def __init__(self, folder: str, name: str, clock: Callable[[], int] = time.time_ns) -> None:
        self._path = Path(folder) / f"profiler-{name}.msgpack" if folder else None
        self._clock = clock
        self._failing = False

    def load(self) -> tuple[ProfilerState, int] | None:
        """Return the stored state and its age in ns; None, with a warning in the log, if the file is unusable."""
        if self._path is None or not self._path.exists():
            return None
        try:
            file = msgspec.msgpack.decode(self._path.read_bytes(), type=_StateRecord)
            if (file.format, file.version) != ("horologe-profiler", VERSION):
                raise ValueError(f"format: got {file.format!r} version {file.version}, wanted version {VERSION}")
        except (OSError, ValueError, msgspec.MsgspecError, RecursionError) as error:
            log.warning("state file unreadable: starting without measurements", path=str(self._path), error=str(error))
            return None
        return file.kept, max(0, self._clock() - file.saved_ns)

    def save(self, kept: ProfilerState) -> None:
        """Replace the file. An error is logged once, until a write succeeds again."""
        if self._path is None:
            return
        draft = self._path.with_suffix(f".{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(msgspec.msgpack.encode(_StateRecord("horologe-profiler", VERSION, self._clock(), kept)))
            draft.replace(self._path)
            self._failing = False
        except OSError as error:
            if not self._failing:
                log.warning("state file not written", path=str(self._path), error=str(error))
            self._failing = True
