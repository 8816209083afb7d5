"""Watches the files of a model repository, and reports the models whose files have changed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from horologe_common.service.log import logger
from horologe_common.service.settings import SettingsError
from horologe_common.status import describe_error, encodable
from horologe_gpu_worker.core.lanes import ModelsChanged
from horologe_gpu_worker.fetching.source import Source, parse_source

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_gpu_worker.settings import WorkerSettings

log = logger("repository")


def watched_source(settings: WorkerSettings) -> Source:
    """Return the folder to watch, as a resolved path. Raise `SettingsError` if the repository is at a URL, or
    without the package watchfiles."""
    source = parse_source(settings.repository)
    if source.is_remote:
        raise SettingsError("setting worker.watch: got true, wanted false, because worker.repository is a URL")
    if find_spec("watchfiles") is None:
        raise SettingsError("setting worker.watch: got true, wanted the package watchfiles (pip install watchfiles)")
    return Source(source.name, str(Path(source.place).resolve()))


async def watch_repository(source: Source, report: Callable[[ModelsChanged], None]) -> None:
    """Report the models of a folder whose files change. Runs until it is cancelled.

    Changes within 1.6 s of each other are reported together (`debounce` of watchfiles). Files that are still being
    written then change again, and are reported again. An error of the system, such as the limit of inotify watches, is
    logged, and ends the watch.
    """
    from watchfiles import awatch  # the setting is off by default

    folder = Path(source.place)
    try:
        async for changes in awatch(folder, watch_filter=None):
            parts = [Path(path).relative_to(folder).parts for _, path in changes]
            names = {source.name} if source.name else {path[0] for path in parts if path}
            if names:
                report(ModelsChanged(tuple(sorted(map(encodable, names)))))
    except OSError as error:
        log.error("repository not watched any more", path=str(folder), error=describe_error(error))
