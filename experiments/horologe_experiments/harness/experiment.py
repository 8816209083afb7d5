"""The interface of an experiment: a scene (a TOML file) goes in, rows, bars and series for the figure come out."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import msgspec

from horologe_common.service.settings import SettingsError
from horologe_sim.scenario.scenario import read_units

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from matplotlib.figure import Figure

    Progress = Callable[[float, str], None]
    """Told how far it is, from 0 to 1, and with what."""

T = TypeVar("T")
SCENES = Path(__file__).parents[1] / "scenes"


class Bar(msgspec.Struct, frozen=True):
    """What an experiment must reach."""

    name: str
    value: float
    bar: float
    sense: Literal["at least", "at most"] = "at least"

    @property
    def holds(self) -> bool:
        return self.value >= self.bar if self.sense == "at least" else self.value <= self.bar

    def as_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {"name": f"{self.name}, {self.sense}", "value": self.value, "bar": self.bar, "holds": self.holds}


class Findings(msgspec.Struct):
    """What an experiment found. The same seed gives the same rows and bars; `cost` is what it took, by the clock."""

    experiment: str
    title: str
    seed: int
    quick: bool
    facts: dict[str, str]
    """What a reader must know of the set-up."""
    rows: list[dict[str, Any]]
    bars: list[Bar]
    series: dict[str, Any] = {}
    cost: Cost | None = None

    @property
    def holds(self) -> bool:
        """Whether every bar does."""
        return all(bar.holds for bar in self.bars)

    def as_json(self) -> dict[str, Any]:
        return {"experiment": self.experiment, "rows": self.rows, "bars": [bar.as_json() for bar in self.bars]}


class Cost(msgspec.Struct):
    """Simulated requests, and the seconds that took in all and in the controller's own core."""

    requests: int = 0
    wall_s: float = 0.0
    controller_s: float = 0.0

    def told(self) -> str:
        rate = self.requests / self.wall_s if self.wall_s else 0.0
        share = self.controller_s / self.wall_s if self.wall_s else 0.0
        return (
            f"{self.requests:,} requests simulated in {self.wall_s:.1f} s of one core: {rate:,.0f} a second, "
            f"{share:.0%} of it the controller"
        )


class Experiment(Protocol):
    """A module-level object in `experiments/`, entered in `EXPERIMENTS`."""

    name: str
    title: str

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """Run it on its scene. Deterministic by seed. Raises `SettingsError` for a scene that cannot be."""

    def draw(self, findings: Findings) -> Figure:
        """The figure, with the paper's values beside ours."""


def scene(name: str, kind: type[T], quick: bool, changes: Mapping[str, Any]) -> T:
    """Read `scenes/NAME.toml` as `kind`; with `quick`, its table `[quick]` laid over the rest; then `changes`.

    `changes`: dotted keys -> values. Raises `SettingsError`.
    """
    table = tomllib.loads((SCENES / f"{name}.toml").read_text())
    shortened = table.pop("quick", {})
    if quick:
        _lay_over(table, shortened)
    for key, value in changes.items():
        tree: dict[str, Any] = {}
        _put(tree, key.split("."), value)
        _lay_over(table, tree)
    try:
        return msgspec.convert(read_units(f"scene {name}", table), kind, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(f"scene {name}: {error}") from error


def _lay_over(table: dict[str, Any], other: Mapping[str, Any]) -> None:
    for key, value in other.items():
        if isinstance(value, dict) and isinstance(table.get(key), dict):
            _lay_over(table[key], value)
        else:
            table[key] = value


def _put(tree: dict[str, Any], path: list[str], value: Any) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = value
