"""Promises about speed, and whether a measurement keeps them."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from bench.table import number


class Bar(msgspec.Struct, frozen=True):
    """`value` shall be at most, or at least, `limit`. `where`: the placement; `detail`: what the value is made of."""

    name: str
    where: str
    value: float
    sense: Literal["<=", ">="]
    limit: float
    unit: str = ""
    detail: str = ""

    @property
    def holds(self) -> bool:
        """A value that could not be measured holds nothing."""
        if math.isnan(self.value):
            return False
        return self.value <= self.limit if self.sense == "<=" else self.value >= self.limit


HEAD = ("bar", "placement", "value", "wanted", "holds", "detail")


def row(bar: Bar) -> list[str]:
    wanted = f"{bar.sense} {number(bar.limit)} {bar.unit}".strip()
    value = f"{number(bar.value)} {bar.unit}".strip()
    return [bar.name, bar.where, value, wanted, "yes" if bar.holds else "NO", bar.detail]
