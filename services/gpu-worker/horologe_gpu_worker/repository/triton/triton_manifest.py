"""Manifests of models that only `config.pbtxt` describes. LOADs read them again, so the last ones are kept."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from horologe_gpu_worker.repository.manifest import TRITON_CONFIG, InvalidModel, convert_manifest
from horologe_gpu_worker.repository.manifest_fields import Manifest
from horologe_gpu_worker.repository.triton.translation import translate_version

if TYPE_CHECKING:
    from pathlib import Path

KEPT_MAX = 256


def read_triton_manifest(folder: Path) -> Manifest:
    """Return the manifest of a version. Raises `InvalidModel` naming everything that is missing."""
    try:
        config_state = _state((folder.parent / TRITON_CONFIG).stat())
        files = sorted((entry.name, *_state(entry.stat())) for entry in os.scandir(folder))
    except OSError as error:
        raise InvalidModel(f"{error.filename or folder}: {error.strerror}") from error
    return _translate(folder, config_state, tuple(files))


def _state(status: os.stat_result) -> tuple[int, ...]:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@lru_cache(KEPT_MAX)
def _translate(folder: Path, config_state: tuple[int, ...], file_states: tuple[Any, ...]) -> Manifest:
    """Translate the configuration, once for these states of it and of the files in the folder."""
    path, translation = folder.parent / TRITON_CONFIG, translate_version(folder)
    if translation.missing:
        reasons = "; ".join(f"{finding.field}: {finding.text}" for finding in translation.missing)
        raise InvalidModel(f"{path}: not supported: {reasons}")
    return convert_manifest(path, translation.manifest)
