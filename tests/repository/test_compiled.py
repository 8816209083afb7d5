"""The sources that `make wheels` compiles can be compiled: they are translated to C, without a C compiler."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TRANSLATE = """
import sys
from mypyc.build import mypycify
mypycify(["--config-file=pyproject.toml", f"--cache-dir={sys.argv[1]}", *sys.argv[2:]], target_dir=sys.argv[1])
"""


def compiled_modules() -> list[str]:
    hook = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]
    paths = {str(path.relative_to(ROOT)) for pattern in hook["custom"]["include"] for path in ROOT.glob(pattern)}
    return sorted(path for path in paths if not any(fnmatch(path, one) for one in hook["custom"]["exclude"]))


def test_every_name_in_the_build_hook_is_a_module() -> None:
    hook = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]
    assert all(list(ROOT.glob(pattern)) for pattern in (*hook["custom"]["include"], *hook["custom"]["exclude"]))
    assert len(compiled_modules()) > 40


def test_no_compiled_module_has_fields_with_ranges() -> None:
    """Compiled, a struct of msgspec takes any value."""
    assert not [path for path in compiled_modules() if "Meta(" in (ROOT / path).read_text(encoding="utf-8")]


def test_the_controller_can_be_translated_to_c(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TRANSLATE, str(tmp_path), *compiled_modules()]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert result.returncode == 0, result.stdout + result.stderr
    assert list(tmp_path.glob("*.c"))
