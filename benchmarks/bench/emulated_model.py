"""A folder with one emulated model, whose output is its input."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MANIFEST = """runtime = "emulated"
batch_sizes = [{sizes}]
{settings}
inputs = [{{ name = "x", datatype = "FP32", shape = [-1, {width}] }}]
outputs = [{{ name = "y", datatype = "FP32", shape = [-1, {width}] }}]
[emulated]
exec_ms = {{ {times} }}
load_ms = {load_ms}
"""


def write_echo_model(
    folder: Path, name: str, width: int, exec_ms: Mapping[int, float], load_ms: float, settings: str = ""
) -> None:
    """Write the model `name` with rows of `width` FP32. `settings`: further lines of its manifest."""
    path = folder / name / "1"
    path.mkdir(parents=True)
    times = ", ".join(f"{size} = {time_ms}" for size, time_ms in exec_ms.items())
    sizes = ", ".join(map(str, exec_ms))
    text = MANIFEST.format(sizes=sizes, settings=settings, width=width, times=times, load_ms=load_ms)
    (path / "model.toml").write_text(text)
