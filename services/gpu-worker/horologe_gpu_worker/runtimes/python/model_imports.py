"""Imports of a Python model: from sources, never from a `__pycache__`, and only from files of its content."""

from __future__ import annotations

import os
import sys
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourcelessFileLoader,
)
from pathlib import Path
from types import ModuleType

from horologe_common.service.user_files import SourceLoader
from horologe_common.status import ModelFailed
from horologe_gpu_worker.repository.content import list_files


class ModelImports:
    """Imports of the model in `folder` (absolute). Create it before the folder is in `sys.path`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._repository = folder.parent.parent
        self._installed = [path for path in map(Path, sys.path) if self._repository in path.parents]

    def install(self) -> None:
        """Make modules in the folder importable, and find all modules of the repository by their sources."""
        sys.dont_write_bytecode = True  # the folder may be read-only
        sys.path_hooks.insert(0, self._find_sources)
        sys.path_importer_cache.clear()
        sys.path.insert(0, str(self._folder))

    def check_modules(self) -> None:
        """Raise `ModelFailed` if a file of the repository was imported that is not part of the model's content."""
        files = [file.path for file in list_files(self._folder)]
        content = {*map(os.path.normpath, files), *map(os.path.realpath, files)}
        for module in list(sys.modules.values()):
            path = vars(module).get("__file__") if isinstance(module, ModuleType) else None
            if isinstance(path, str) and self._is_inside(path) and os.path.normpath(path) not in content:
                raise ModelFailed(
                    f"model.py: imports {os.path.normpath(path)}, wanted only modules that are part of the model: in "
                    f"{self._folder} (or behind a link there), beside it, or in a folder {self._folder.parent}/__NAME"
                )

    def _is_inside(self, path: str) -> bool:
        """Return whether a path is in the repository, and not in a folder of installed packages there."""
        inside = Path(os.path.normpath(path))
        return inside.is_relative_to(self._repository) and not any(map(inside.is_relative_to, self._installed))

    def _find_sources(self, path: str) -> FileFinder:
        if not os.path.isdir(path) or not self._is_inside(path):
            raise ImportError(path)
        return FileFinder(
            path,
            (ExtensionFileLoader, EXTENSION_SUFFIXES),
            (SourceLoader, SOURCE_SUFFIXES),
            (SourcelessFileLoader, BYTECODE_SUFFIXES),
        )
