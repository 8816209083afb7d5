"""Which folder a worker watches: that of the repository, or of its only model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from horologe_common.service.settings import SettingsError
from horologe_gpu_worker.fetching.source import Source
from horologe_gpu_worker.repository.repository_watch import watched_source
from horologe_gpu_worker.settings import WorkerSettings

if TYPE_CHECKING:
    from pathlib import Path


def test_a_folder_or_the_folder_of_one_model_is_watched(tmp_path: Path) -> None:
    assert watched_source(WorkerSettings(repository=str(tmp_path))) == Source("", str(tmp_path.resolve()))
    assert watched_source(WorkerSettings(repository=f"m={tmp_path}")) == Source("m", str(tmp_path.resolve()))


def test_a_url_is_not_watched() -> None:
    with pytest.raises(SettingsError, match=r"worker\.watch: got true, wanted false"):
        watched_source(WorkerSettings(repository="https://models.example/repository"))
