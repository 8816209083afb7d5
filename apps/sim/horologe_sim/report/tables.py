"""Tables for terminals (rich), files and pipes (plain text), and pages (Markdown)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

PADDING = 2
"""Spaces between two columns of plain text."""


class Cell(NamedTuple):
    """Text with a rich style, for example `Cell("held", "green")`. Plain text and Markdown ignore the style."""

    text: str
    style: str = ""


class _Row(NamedTuple):
    cells: list[Cell]
    style: str
    starts_section: bool


@dataclass
class Table:
    """Rows of cells below column names. The first `left` columns are aligned left, the others right.

    A table whose column names are all empty is written without a header. `caption` is a line below the table.
    `grid` draws borders on terminals. Call `add_row` for each row, then one of `print`, `text` and `markdown`.
    """

    columns: Sequence[str]
    title: str = ""
    caption: str = ""
    left: int = 1
    grid: bool = False
    _rows: list[_Row] = field(default_factory=list, init=False)
    _section: bool = field(default=False, init=False)

    def add_row(self, *cells: Any, style: str = "") -> None:
        """Append a row; `format_cell` formats values. Raises ValueError for a wrong number of cells."""
        if len(cells) != len(self.columns):
            raise ValueError(f"cells: got {len(cells)}, wanted {len(self.columns)}")
        texts = [cell if isinstance(cell, Cell) else Cell(format_cell(cell)) for cell in cells]
        self._rows.append(_Row(texts, style, self._section))
        self._section = False

    def add_section(self) -> None:
        """Start a new section: terminals draw a line above the next row of a table with `grid`."""
        self._section = bool(self._rows)

    def print(self, console: Console) -> None:
        """Print with rich on a terminal, else as plain text, which cuts nothing to a width."""
        if not console.is_terminal:
            console.print(self.text(), markup=False, highlight=False, soft_wrap=True)
            return
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(
            title=self.title or None,
            title_justify="left",
            title_style="bold",
            caption=self.caption or None,
            caption_justify="left",
            box=box.HEAVY_HEAD if self.grid else None,
            show_header=any(self.columns),
        )
        for number, name in enumerate(self.columns):
            table.add_column(name, justify="left" if number < self.left else "right", overflow="fold")
        for row in self._rows:
            if row.starts_section:
                table.add_section()
            table.add_row(*(Text(cell.text, cell.style) for cell in row.cells), style=row.style or None)
        console.print(table)

    def text(self) -> str:
        """Return plain text: title, aligned columns, caption."""
        return "\n".join([*filter(None, [self.title]), *self.lines(), *filter(None, [self.caption])])

    def lines(self) -> list[str]:
        """Return the lines of `text` without title and caption."""
        gap = " " * PADDING
        return [gap.join(cells).rstrip() for cells in self._padded(self._texts(), self.left)]

    def markdown(self, padded: bool = False) -> str:
        """Return a Markdown table without title and caption. `padded` fills cells up to the width of their column."""
        texts = [[text.replace("|", "\\|") for text in row] for row in [list(self.columns), *self._texts(header=False)]]
        widths = [3] * len(self.columns)
        if padded:
            texts = self._padded(texts, len(self.columns))
            widths = [max(3, len(text)) for text in texts[0]]
        rule = ["-" * width if at < self.left else "-" * (width - 1) + ":" for at, width in enumerate(widths)]
        return "\n".join(f"| {' | '.join(row)} |" for row in [texts[0], rule, *texts[1:]])

    def _texts(self, header: bool = True) -> list[list[str]]:
        rows = [[cell.text for cell in row.cells] for row in self._rows]
        return [list(self.columns), *rows] if header and any(self.columns) else rows

    def _padded(self, rows: list[list[str]], left: int) -> list[list[str]]:
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return [
            [row[at].ljust(width) if at < left else row[at].rjust(width) for at, width in enumerate(widths)]
            for row in rows
        ]


def format_cell(value: Any) -> str:
    """Return a value as text: `1,234`, seven significant digits, yes or no, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.7g}" if isinstance(value, float) else str(value)
