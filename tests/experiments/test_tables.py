"""`report/tables.py`: the same rows as plain text, as Markdown and on a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from horologe_experiments.harness.findings_files import table_of
from horologe_sim.report.tables import Cell, Table, format_cell


def example() -> Table:
    table = Table(("model", "sent", "ok"), title="Requests", caption="two models")
    table.add_row("mlp", 1200, 0.5)
    table.add_section()
    table.add_row("a|b [x]", Cell("7", "green"), None)
    return table


def test_plain_text_is_aligned() -> None:
    assert example().text().splitlines() == [
        "Requests",
        "model     sent   ok",
        "mlp      1,200  0.5",
        "a|b [x]      7",
        "two models",
    ]


def test_markdown_escapes_bars() -> None:
    assert example().markdown().splitlines() == [
        "| model | sent | ok |",
        "| --- | --: | --: |",
        "| mlp | 1,200 | 0.5 |",
        r"| a\|b [x] | 7 |  |",
    ]
    widths = {len(line) for line in example().markdown(padded=True).splitlines()}
    assert len(widths) == 1


def test_a_pipe_gets_plain_text_that_is_never_cut() -> None:
    table, out = Table(("name",)), io.StringIO()
    table.add_row("x" * 300)
    table.print(Console(file=out, width=40))
    assert "x" * 300 in out.getvalue()


def test_a_terminal_gets_every_cell() -> None:
    out = io.StringIO()
    example().print(Console(file=out, width=80, force_terminal=True, color_system=None))
    assert all(text in out.getvalue() for text in ("Requests", "1,200", "a|b [x]", "two models"))


def test_empty_column_names_mean_no_header() -> None:
    table = Table(("", ""))
    table.add_row("a", "b")
    assert table.text() == "a  b"


def test_a_table_of_dictionaries_has_every_key() -> None:
    assert table_of([{"a": 1}, {"a": 2, "b": "x"}]).lines() == ["a  b", "1", "2  x"]


def test_a_row_with_too_few_cells_is_rejected() -> None:
    with pytest.raises(ValueError, match="cells: got 1, wanted 3"):
        example().add_row("x")


@pytest.mark.parametrize(("value", "text"), [(True, "yes"), (1234567, "1,234,567"), (0.123456789, "0.1234568")])
def test_values_are_formatted(value: object, text: str) -> None:
    assert format_cell(value) == text
