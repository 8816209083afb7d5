"""Common to all parts of a benchmark: options, measurements, and systems that serve every model."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from bench.horologe_server import LOGS, make_repository
from bench.measurements import Measurements
from bench.report import Bar
from bench.systems import NO_PROFILER, Conditions, System, start_systems
from bench.workload import ROOT

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

STATIC = ("noop", "digits-linear", "digits-mlp", "digits-cnn", "cnn-10ms")
"""Models whose execution time does not depend on the input. They have scenarios."""
SCENARIOS = {"cnn-10ms": "cnn"}
"""Scenario by model where the names differ."""
SERVED = ("models/digits-*", "models/no*", "benchmarks/models/cnn-10ms", "benchmarks/models/text-encoder")
DYNAMIC = "text-encoder/1"
"""The one model of `SERVED` whose execution time depends on its input."""


class Effort(NamedTuple):
    """Lengths of a benchmark. `trials`: limit of a search for a capacity."""

    rounds: int
    slow_rounds: int
    """Rounds of parts that search for capacities."""
    seconds: float
    trials: int
    quick: bool
    yardstick: Path | None = None
    mosec: tuple[int, ...] = (4, 16)
    peers: tuple[str, ...] = ("mosec", "triton")


class BenchRun:
    """The state of one benchmark. A context manager, which stops the shared systems."""

    def __init__(self, conditions: Conditions, effort: Effort) -> None:
        self.conditions, self.effort = conditions, effort
        self.log = Measurements()
        self.dynamic: dict[str, dict[str, bool] | None] = {}
        """Dynamic models by the name of the system, after the last part that used the shared systems."""
        self._stack = contextlib.ExitStack()
        self._systems: dict[str, System] = {}

    def __enter__(self) -> BenchRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_shared()

    def shared(self) -> dict[str, System]:
        """Return the systems that serve the demo's models, the CNN and the text encoder with one worker."""
        if not self._systems:
            sources = [path for pattern in SERVED for path in sorted(ROOT.glob(pattern)) if path.is_dir()]
            repository = make_repository(LOGS / "models", sources)
            self._systems = self._stack.enter_context(start_systems(self.conditions, repository))
        return self._systems

    def dynamic_bars(self) -> list[Bar]:
        """Return the bars on what the shared systems have learned until now."""
        self.dynamic = {name: system.dynamic() for name, system in self._systems.items()}
        return dynamic_bars(self.dynamic)

    def stop_shared(self) -> None:
        """Stop the shared systems, so that a part can have the machine for systems of its own."""
        self._stack.close()
        self._systems = {}


def dynamic_bars(dynamic: dict[str, dict[str, bool] | None]) -> list[Bar]:
    """Return the bars on what was learned: no static model is dynamic, and the text encoder is."""
    bars = []
    for name, learned in dynamic.items():
        if learned is None or name == NO_PROFILER:
            continue
        wrong = sorted(key for key, value in learned.items() if value and key != DYNAMIC)
        bars.append(Bar(f"{name}: static models that were declared dynamic", len(wrong), "<=", 0, "", ", ".join(wrong)))
        detected = float(learned.get(DYNAMIC, False))
        bars.append(Bar(f"{name}: {DYNAMIC} is dynamic", detected, ">=", 1))
    return bars
