"""What clients see of paths: those of models begin at the repository. Logs of the worker have whole paths."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from horologe_gpu_worker.core.lanes import VersionScanned
from horologe_gpu_worker.fetching.mirror import REPOSITORIES, VIEWS

if TYPE_CHECKING:
    from horologe_common.wire import ModelReport
    from horologe_gpu_worker.core.lanes import Finished

NO_PATH_BEFORE = r"(?<![^\s'\"(=:,])"
"""A path begins a text, or follows one of these characters."""


class ShownPaths:
    """Removes the folder of the repository, and that of fetched models in the cache, from messages of the lanes."""

    def __init__(self, repository: str, cache: str) -> None:
        fetched = f"{re.escape(str(Path(cache, REPOSITORIES).absolute()))}/[0-9a-f]+(?:/{re.escape(VIEWS)})?"
        folders = [re.escape(text) for text in (str(Path(repository).absolute()), str(Path(repository)))]
        self._pattern = re.compile(f"{NO_PATH_BEFORE}(?:{'|'.join([fetched, *folders])})/")

    def show(self, message: Finished | VersionScanned) -> Finished | VersionScanned:
        """Return the message with the paths that clients see."""
        if isinstance(message, VersionScanned):
            return msgspec.structs.replace(message, report=self._show_report(message.report))
        if not (message.reason or message.models or message.failed):
            return message
        return msgspec.structs.replace(
            message,
            reason=self._show_text(message.reason),
            models=[self._show_report(report) for report in message.models],
            failed=[(row, self._show_text(reason)) for row, reason in message.failed],
        )

    def _show_report(self, report: ModelReport) -> ModelReport:
        reason, note = self._show_text(report.reason), self._show_text(report.note)
        return msgspec.structs.replace(report, reason=reason, note=note)

    def _show_text(self, text: str) -> str:
        return self._pattern.sub("", text)
