"""The interface of an experiment: it reads a scene (a TOML file) and returns rows, bars and series for the figure."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import msgspec

from horologe_sim.scenario.table_reading import convert_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from matplotlib.figure import Figure

    Progress = Callable[[float, str], None]
    """Called with the completed part, from 0 to 1, and a label of the current step."""

T = TypeVar("T")
SCENES = Path(__file__).parents[1] / "scenes"


class Bar(msgspec.Struct, frozen=True):
    """A value that an experiment must reach."""

    name: str
    value: float
    bar: float
    sense: Literal["at least", "at most"] = "at least"

    @property
    def holds(self) -> bool:
        """Return True if the value reaches the bar."""
        return self.value >= self.bar if self.sense == "at least" else self.value <= self.bar

    def as_json(self) -> dict[str, Any]:
        """Return the bar as `--json` prints it."""
        return {"name": f"{self.name}, {self.sense}", "value": self.value, "bar": self.bar, "holds": self.holds}


class Findings(msgspec.Struct):
    """The result of an experiment. The same seed gives the same rows and bars. `cost` is measured by the clock."""

    experiment: str
    title: str
    seed: int
    quick: bool
    facts: dict[str, str]
    """Set-up of the experiment, for readers of the result page."""
    rows: list[dict[str, Any]]
    bars: list[Bar]
    series: dict[str, Any] = {}
    cost: Cost | None = None

    @property
    def holds(self) -> bool:
        """Return True if every bar holds."""
        return all(bar.holds for bar in self.bars)

    def as_json(self) -> dict[str, Any]:
        """Return the findings as `--json` prints them."""
        return {"experiment": self.experiment, "rows": self.rows, "bars": [bar.as_json() for bar in self.bars]}


class Cost(msgspec.Struct):
    """Simulated requests, and the seconds of the whole simulation and of the controller's core."""

    requests: int = 0
    wall_s: float = 0.0
    controller_s: float = 0.0

    def describe(self) -> str:
        """Return the cost as a sentence."""
        rate = self.requests / self.wall_s if self.wall_s else 0.0
        share = self.controller_s / self.wall_s if self.wall_s else 0.0
        return (
            f"{self.requests:,} requests simulated in {self.wall_s:.1f} s of one core: {rate:,.0f} a second, "
            f"{share:.0%} of it the controller"
        )


class Experiment(Protocol):
    """An experiment. Every experiment has an entry in `registry.EXPERIMENTS`."""

    name: str
    title: str

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """Run the scene. Deterministic by seed. Raises `SettingsError` for an invalid scene."""

    def draw(self, findings: Findings) -> Figure:
        """Draw the measured values beside those of the paper."""


def load_scene(name: str, kind: type[T], quick: bool, changes: Mapping[str, Any]) -> T:
    """Read `scenes/NAME.toml` as `kind`. With `quick`, its table `[quick]` overrides the rest; `changes` override both.

    `changes` maps dotted keys to values. Raises `SettingsError` for an unknown key or a wrong type.
    """
    table = tomllib.loads((SCENES / f"{name}.toml").read_text())
    quick_table = table.pop("quick", {})
    if quick:
        _override(table, quick_table)
    for key, value in changes.items():
        tree: dict[str, Any] = {}
        _set_key(tree, key.split("."), value)
        _override(table, tree)
    return convert_table(f"scene {name}", table, kind)


def _override(table: dict[str, Any], other: Mapping[str, Any]) -> None:
    for key, value in other.items():
        if isinstance(value, dict) and isinstance(table.get(key), dict):
            _override(table[key], value)
        else:
            table[key] = value


def _set_key(tree: dict[str, Any], path: list[str], value: Any) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = value
