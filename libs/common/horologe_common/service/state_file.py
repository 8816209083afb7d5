"""State file of a service: MessagePack that survives a restart and a kill -9. The file is replaced as a whole.

A file that cannot be used is kept aside as `NAME.damaged-HASH`, and the service starts without what it cannot read.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from horologe_common.partial_decoding import DAMAGE, decode_parts
from horologe_common.service.log import logger
from horologe_common.service.settings import SettingsError
from horologe_common.status import describe_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

VERSION = 1
SIZE_LIMIT = 1 << 30
"""Bytes of a file that is read."""
SHOWN = 10
"""Dropped parts that the log names."""
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
    """The file `SERVICE-0.msgpack` in the state folder, with a state of type `kind`. Without a folder: nothing."""

    def __init__(self, kind: type[S], folder: str, service: str, clock: Callable[[], int] = time.time_ns) -> None:
        self._kind = kind
        self._path = Path(folder) / f"{service}-0.msgpack" if folder else None
        self._format = f"horologe-{service}"
        self._clock = clock
        self._failing = False
        self._must_keep_aside = False
        """True while the file is a damaged one that could not be kept aside."""
        self._log = logger(service)

    def restore(self, adopt: Callable[[S, int], Sequence[str]]) -> bool:
        """Pass the stored state and its age in ns to `adopt`, which returns what it has dropped as not valid.

        Return False if there is no usable state. If anything is dropped, keep the file aside and log a warning.
        """
        path = self._path
        if path is None or not os.path.lexists(path):
            return False
        try:
            state, saved_ns, dropped = self._read(path)
        except (OSError, *DAMAGE) as error:
            self._keep_aside(path, [describe_error(error) or type(error).__name__], whole=True)
            return False
        dropped = [*dropped, *adopt(state, max(0, self._clock() - saved_ns))]
        if dropped:
            self._keep_aside(path, dropped, whole=False)
        return True

    def save(self, kept: S) -> None:
        """Replace the file. An error is logged once, until a write succeeds again.

        A damaged file that could not be kept aside is not replaced.
        """
        if self._path is None:
            return
        draft = self._path.with_suffix(f".{os.getpid()}")
        try:
            if self._must_keep_aside:
                self._path.replace(aside_path(self._path))
                self._must_keep_aside = False
            self._path.parent.mkdir(parents=True, exist_ok=True)
            body = msgspec.Raw(msgspec.msgpack.encode(kept))
            draft.write_bytes(msgspec.msgpack.encode(_StateRecord(self._format, VERSION, self._clock(), body)))
            draft.replace(self._path)
            self._failing = False
        except (OSError, OverflowError) as error:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            if not self._failing:
                self._log.warning("state file not written", path=str(self._path), error=str(error))
            self._failing = True

    def _read(self, path: Path) -> tuple[S, int, list[str]]:
        """Return the state, the time when it was saved, and the parts that cannot be decoded. Raises `DAMAGE`."""
        if (size := path.stat().st_size) > SIZE_LIMIT:
            raise ValueError(f"got {size} bytes, wanted at most {SIZE_LIMIT}")
        file = msgspec.msgpack.decode(path.read_bytes(), type=_StateRecord)
        if (file.format, file.version) != (self._format, VERSION):
            raise ValueError(f"format: got {file.format!r} version {file.version}, wanted version {VERSION}")
        try:
            return msgspec.msgpack.decode(file.kept, type=self._kind), file.saved_ns, []
        except msgspec.ValidationError:
            state, dropped = decode_parts(file.kept, self._kind)
            return state, file.saved_ns, dropped

    def _keep_aside(self, path: Path, damage: Sequence[str], *, whole: bool) -> None:
        """Move the file aside, or copy it if a part of it is used, and log what was dropped.

        If that fails, it is tried again before the next write.
        """
        aside = aside_path(path)
        try:
            if whole:
                path.replace(aside)
            else:
                shutil.copy2(path, aside)
            kept = str(aside)
        except OSError as error:
            self._must_keep_aside = True
            kept = f"{path}: not kept aside yet: {describe_error(error)}"
        self._log.warning(
            "state file damaged: starting without what cannot be used",
            path=str(path),
            kept=kept,
            dropped=list(damage[:SHOWN]),
            dropped_parts=len(damage),
        )


def aside_path(path: Path) -> Path:
    """Return the name of a damaged file or folder: a hash of its content, or its inode if it cannot be read."""
    try:
        with path.open("rb") as file:
            name = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=4)).hexdigest()
    except OSError:
        name = f"{path.lstat().st_ino:x}"
    return path.with_name(f"{path.name}.damaged-{name}")
