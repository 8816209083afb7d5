"""What all figures share. matplotlib is the extra `plot`; nothing here opens a window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANEL_INCHES = (4.6, 3.2)


def figure(rows: int, columns: int, sharex: bool = False) -> tuple[Figure, list[Any]]:
    """A figure and its axes, row by row. Raises ImportError without matplotlib."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows), layout="constrained")
    axes = drawn.subplots(rows, columns, squeeze=False, sharex=sharex)
    for one in axes.flat:
        one.grid(alpha=0.3)
    return drawn, list(axes.flat)
