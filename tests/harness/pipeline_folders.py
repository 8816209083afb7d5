"""Writes folders of pipelines for tests."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SIGNATURE = """
[{name}]
slo = "{slo}"
inputs = [{{name = "x", datatype = "{datatype}", shape = [-1, {width}]}}]
outputs = [{{name = "y", datatype = "{datatype}", shape = [-1, {width}]}}]
"""


def write_pipelines(
    folder: Path, drivers: dict[str, str], slo: str = "100ms", datatype: str = "UINT64", width: int = 1
) -> str:
    """Write drivers by name, with one input `x` and one output `y`, and return the folder's path."""
    folder.mkdir(exist_ok=True)
    tables = [SIGNATURE.format(name=name, slo=slo, datatype=datatype, width=width) for name in drivers]
    (folder / "pipeline.toml").write_text("".join(tables))
    for name, source in drivers.items():
        (folder / f"{name}.py").write_text(dedent(source))
    return str(folder)


CHAIN = """
    async def run(call, inputs):
        first = await call("a", {"x": inputs["x"]})
        second = await call("b", {"x": first["y"]})
        return {"y": second["y"]}
    """
DIAMOND = """
    import asyncio

    async def run(call, inputs):
        first = await call("a", inputs)
        left, right = await asyncio.gather(call("b", {"x": first["y"]}), call("c", {"x": first["y"]}))
        last = await call("a", {"x": left["y"]})
        return {"y": last["y"]}
    """
