"""Runs `horologe sim`."""

from __future__ import annotations

from typing import Any

from typer.testing import CliRunner

from horologe_cli.main import app


def sim(*arguments: str) -> Any:
    result = CliRunner().invoke(app, ["sim", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result
