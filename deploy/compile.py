"""Build hook: compile the modules of `include` in pyproject.toml with mypyc, for a wheel of this platform.

`make wheels` switches it on. The sources stay in the wheel, beside what was compiled from them.
"""

from __future__ import annotations

import fnmatch
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

if TYPE_CHECKING:
    from collections.abc import Callable


class CompileHook(BuildHookInterface):  # type: ignore[type-arg,misc]
    """Compiles all modules as one group: calls between them are calls of C functions."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the compiled modules to the wheel. An editable installation stays interpreted."""
        if version == "editable":
            return
        self._folder = tempfile.mkdtemp()
        for path in _compile(self._modules(), self._folder):
            build_data["force_include"][str(path)] = str(path.relative_to(self._folder))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary files."""
        if version != "editable":
            shutil.rmtree(self._folder)

    def _modules(self) -> list[str]:
        root = Path(self.root)
        paths = {path.relative_to(root) for pattern in self.config["include"] for path in root.glob(pattern)}
        excluded = self.config["exclude"]
        return sorted(str(path) for path in paths if not any(fnmatch.fnmatch(str(path), one) for one in excluded))


def _compile(modules: list[str], folder: str) -> list[Path]:
    """Compile modules into `folder`, and return the files there."""
    from mypyc.build import mypycify
    from mypyc.ir.class_ir import ClassIR
    from setuptools import Distribution

    ClassIR.__init__ = _serializable(ClassIR.__init__)

    with tempfile.TemporaryDirectory() as temporary:
        options = ["--config-file=pyproject.toml", f"--cache-dir={temporary}"]
        extensions = mypycify([*options, *modules], opt_level="2", target_dir=temporary)
        command = Distribution({"name": "horologe", "ext_modules": extensions}).get_command_obj("build_ext")
        command.build_lib, command.build_temp = folder, temporary  # type: ignore[attr-defined]
        command.ensure_finalized()
        command.run()
    return sorted(Path(folder).rglob("*.so"))


def _serializable(init: Callable[..., None]) -> Callable[..., None]:
    """Let all classes be pickled and derived from: recordings hold the state of cores, and tests replace parts of it.

    These are the options `serializable` and `allow_interpreted_subclasses` of `mypyc_attr`. With the first alone, mypyc
    2.4.1 calls no constructor.
    """

    def initialize(self: Any, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        self._serializable = self.allow_interpreted_subclasses = True

    return initialize
