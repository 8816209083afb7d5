"""Figures of experiments with matplotlib. No window is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANEL_INCHES = (4.6, 3.2)


def make_figure(rows: int, columns: int, sharex: bool = False) -> tuple[Figure, list[Any]]:
    """Return a figure and its axes, row by row. Raises ImportError without matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharex=sharex)
    for axes in panels.flat:
        axes.grid(alpha=0.3)
    return figure, list(panels.flat)
