"""Runs experiments through the command."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from harness.command_line import run_horologe

if TYPE_CHECKING:
    from pathlib import Path


def run_experiment(
    name: str, *changes: str, folder: Path | None = None, options: tuple[str, ...] = ("--quick",)
) -> tuple[int, dict[str, Any]]:
    """Run an experiment with changes of its scene. Return its exit code and its document.

    `folder`: for the findings and the figure.
    """
    written = ["--plot", "--out", str(folder)] if folder else []
    result = run_horologe("experiment", name, "--json", *options, *written, *(f"--set={change}" for change in changes))
    return result.exit_code, json.loads(result.stdout)
