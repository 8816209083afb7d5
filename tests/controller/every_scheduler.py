"""Names of all schedulers, and of the example in CONTRIBUTING.md, which is registered for the tests of a module."""

from __future__ import annotations

import re
import textwrap
import types
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from horologe_controller.schedulers import SCHEDULERS

if TYPE_CHECKING:
    from collections.abc import Iterator

LATE_ON_PURPOSE = ("clipper", "fifo")  # they refuse nothing for what it will take
EXAMPLE = "example"
NAMES = [*SCHEDULERS, EXAMPLE]
everyone = pytest.mark.parametrize("name", NAMES)
names = pytest.mark.parametrize("name", [name for name in NAMES if name not in LATE_ON_PURPOSE])


@pytest.fixture(autouse=True, scope="module")
def contributing_example() -> Iterator[None]:
    """Register the policy that CONTRIBUTING.md shows."""
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    code = textwrap.dedent(
        re.findall(r"^ *```python\n(.*?)^ *```", text.split("## Add a scheduler")[1], re.M | re.S)[0]
    )
    assert code.count("\n") <= 25
    module = types.ModuleType("horologe_controller.schedulers.example")
    exec(compile(code, "CONTRIBUTING.md", "exec"), module.__dict__)
    SCHEDULERS[EXAMPLE] = module.__dict__["OldestFirst"]
    yield
    del SCHEDULERS[EXAMPLE]
