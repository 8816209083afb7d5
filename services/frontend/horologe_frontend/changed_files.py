"""Reads files again when they change: keys and certificates are replaced without a restart."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from horologe_common.service.log import logger
from horologe_common.service.settings import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

INTERVAL_S = 1.0
log = logger("endpoints")


class ChangedFiles:
    """Watches files. Create it before the files are read first."""

    def __init__(self, files: Sequence[str]) -> None:
        self._files = files
        self._seen = _signatures(files)

    async def run(self, reload: Callable[[], None], interval_s: float = INTERVAL_S) -> None:
        """Look at the files each `interval_s` until this is cancelled. Call `reload` in a thread when one has changed.

        If the new content is invalid, log that and keep the present one until the next change: a certificate and its
        key may be replaced one after the other.
        """
        while True:
            await asyncio.sleep(interval_s)
            signatures = await asyncio.to_thread(_signatures, self._files)
            if signatures == self._seen:
                continue
            self._seen = signatures
            try:
                await asyncio.to_thread(reload)
            except SettingsError as error:
                log.error("changed files not used", reason=error.reason)
            else:
                log.info("changed files read", files=list(self._files))


def _signatures(files: Sequence[str]) -> list[tuple[int, ...]]:
    """Return what differs after a file was written or replaced. A link is followed, as Kubernetes replaces Secrets."""
    return [_signature(file) for file in files]


def _signature(file: str) -> tuple[int, ...]:
    try:
        status = os.stat(file)
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
