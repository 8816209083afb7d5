"""Output of commands in files and pipes."""

from __future__ import annotations

from horologe_cli.output import console, stderr_console
from horologe_sim.report.tables import Table


def test_files_and_pipes_get_whole_lines(capsys: object) -> None:
    line = " ".join(["a-model-with-a-long-name"] * 20)
    table = Table(("model", "note"))
    table.add_row("m" * 300, "n" * 300)
    console().print(line)
    table.print(console())
    stderr_console().print(line)
    captured = capsys.readouterr()  # type: ignore[attr-defined]
    assert captured.out.splitlines()[0] == line
    assert "m" * 300 in captured.out
    assert "n" * 300 in captured.out
    assert captured.err == line + "\n"
