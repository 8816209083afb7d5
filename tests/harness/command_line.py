"""Runs `horologe` commands in the process of the test: a process of their own takes half a second to start."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from typer.testing import CliRunner

from horologe_cli.main import app

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result


def run_horologe(*arguments: str, stdin: str = "", cwd: Path | None = None) -> Result:
    """Return exit code, standard output and standard error of a command. Exceptions other than SystemExit pass on."""
    with contextlib.chdir(cwd or os.curdir):
        return CliRunner().invoke(app, arguments, input=stdin, catch_exceptions=False)
