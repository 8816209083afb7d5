"""The notebooks of `examples/` run against the models of the demo, and print what they show."""

from __future__ import annotations

import contextlib
import io
import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.running_up import Up

if TYPE_CHECKING:
    from collections.abc import Iterator

NOTEBOOKS = sorted((Path(__file__).parents[3] / "examples" / "notebooks").glob("*.ipynb"))
VARIES = "varies"
"""Tag of cells whose output is not the same in every run."""


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    up = Up(tmp_path_factory.mktemp("up"), "--demo", "--no-tuner", "--no-profiler")
    yield up.ready["clients"][0]
    assert up.stop(signal.SIGTERM) == 0


def code_cells(notebook: Path) -> list[dict[str, Any]]:
    document = json.loads(notebook.read_text(encoding="utf-8"))
    assert document["nbformat"] == 4
    return [cell for cell in document["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_shows(notebook: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "PIL" in notebook.read_text(encoding="utf-8"):
        pytest.importorskip("PIL")
    monkeypatch.setenv("HOROLOGE_ENDPOINT", endpoint)
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(code_cells(notebook), start=1):
        source, printed = "".join(cell["source"]), io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(source, f"{notebook.name}, cell {number}", "exec"), names)
        shown = "".join(text for output in cell["outputs"] for text in output["text"])
        if VARIES in cell["metadata"].get("tags", ()):
            assert len(printed.getvalue().splitlines()) == len(shown.splitlines()) > 0
        else:
            assert printed.getvalue() == shown
