"""Watches the files of a model repository, and reports the models whose files have changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from horologe_common.service.log import logger
from horologe_common.status import describe_error
from horologe_gpu_worker.core.lanes import ModelsChanged

if TYPE_CHECKING:
    from collections.abc import Callable

log = logger("repository")


async def watch_repository(folder: Path, report: Callable[[ModelsChanged], None]) -> None:
    """Report the models in the folder, a resolved path, whose files change. Runs until it is cancelled.

    Changes within 1.6 s of each other are reported together (`debounce` of watchfiles). Files that are still being
    written then change again, and are reported again. An error of the system, such as the limit of inotify watches, is
    logged, and ends the watch.
    """
    from watchfiles import awatch  # the setting is off by default

    try:
        async for changes in awatch(folder, watch_filter=None):
            parts = [Path(path).relative_to(folder).parts for _, path in changes]
            if names := sorted({path[0] for path in parts if path}):
                report(ModelsChanged(tuple(names)))
    except OSError as error:
        log.error("repository not watched any more", path=str(folder), error=describe_error(error))
