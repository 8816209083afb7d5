"""State file of a service: MessagePack that survives a restart and a kill -9. The file is replaced as a whole."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from horologe_common.service.log import logger
from horologe_common.service.settings import SettingsError
from horologe_common.status import describe_error

if TYPE_CHECKING:
    from collections.abc import Callable

VERSION = 1
S = TypeVar("S", bound=msgspec.Struct)


def check_writable(folder: str, setting: str) -> None:
    """Create the folder of a setting. Raises `SettingsError` if it cannot be written. Empty: there is none."""
    if not folder:
        return
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        wanted = f"wanted a folder that this user can write: {describe_error(error)}"
        raise SettingsError(f"setting {setting}: got {folder!r}, {wanted}") from error


class _StateRecord(msgspec.Struct, array_like=True):
    """Content of the file. `saved_ns` is wall-clock time, because monotonic clocks restart with the machine."""

    format: str
    version: int
    saved_ns: int
    kept: msgspec.Raw


class StateFile(Generic[S]):
    """The file `SERVICE-NAME.msgpack` in the state folder, with a state of type `kind`. Without a folder: nothing."""

    def __init__(
        self, kind: type[S], folder: str, service: str, name: str, clock: Callable[[], int] = time.time_ns
    ) -> None:
        self._kind = kind
        self._path = Path(folder) / f"{service}-{name}.msgpack" if folder else None
        self._format = f"horologe-{service}"
        self._clock = clock
        self._failing = False
        self._log = logger(service)

    def load(self) -> tuple[S, int] | None:
        """Return the stored state and its age in ns; None, with a warning in the log, if the file is unusable."""
        if self._path is None or not self._path.exists():
            return None
        try:
            file = msgspec.msgpack.decode(self._path.read_bytes(), type=_StateRecord)
            if (file.format, file.version) != (self._format, VERSION):
                raise ValueError(f"format: got {file.format!r} version {file.version}, wanted version {VERSION}")
            kept = msgspec.msgpack.decode(file.kept, type=self._kind)
        except (OSError, ValueError, msgspec.MsgspecError, RecursionError) as error:
            self._log.warning("state file unreadable: starting without it", path=str(self._path), error=str(error))
            return None
        return kept, max(0, self._clock() - file.saved_ns)

    def save(self, kept: S) -> None:
        """Replace the file. An error is logged once, until a write succeeds again."""
        if self._path is None:
            return
        draft = self._path.with_suffix(f".{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            body = msgspec.Raw(msgspec.msgpack.encode(kept))
            draft.write_bytes(msgspec.msgpack.encode(_StateRecord(self._format, VERSION, self._clock(), body)))
            draft.replace(self._path)
            self._failing = False
        except OSError as error:
            if not self._failing:
                self._log.warning("state file not written", path=str(self._path), error=str(error))
            self._failing = True
