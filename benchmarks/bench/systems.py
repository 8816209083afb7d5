"""Systems under comparison: the default, the same without a profiler, and the default of another checkout.

All of them run at the same time, and one at a time is measured. So the sides of a ratio are measured within seconds.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, NamedTuple

from bench.horologe_server import Launch, start_horologe
from bench.runs import ScenarioRuns
from bench.targets import make_target
from bench.warm_up import busy_neighbour, wait_until_settled, warm_up
from horologe_load.mixed_traffic import dynamic_models

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from bench.horologe_server import RunningHorologe
    from bench.workload import Scenario

DEFAULT, NO_PROFILER, BEFORE = "default", "no-profiler", "before"
UNLEARNED_PART = 0.25
"""Without a profiler, a system gets this part of the mixed traffic: it has only rolling estimates to warm."""
DIALECTS_OF_INTERFACES = {"sdk": "", "ipc": "", "json": "oip-json-slo", "binary": "oip-binary-slo"}
"""Interface of Horologe -> dialect of HTTP. `ipc` is the SDK over a Unix socket, `binary` is HTTP."""


class System(NamedTuple):
    """A running and warmed system."""

    name: str
    server: RunningHorologe

    def runs(self, scenario: Scenario, interface: str) -> ScenarioRuns:
        """Return runs of a scenario over one of `DIALECTS_OF_INTERFACES`. Raises KeyError for another."""
        dialect = DIALECTS_OF_INTERFACES[interface]
        url = self.server.http if dialect else self.server.ipc if interface == "ipc" else self.server.sdk
        return ScenarioRuns(scenario, lambda inputs: make_target(url, dialect, scenario, inputs))

    def dynamic(self) -> dict[str, bool] | None:
        """Return by `name/version` whether the models are dynamic now; None if the system does not report it."""
        return dynamic_models(self.server.metric_pages())


class Conditions(NamedTuple):
    """Options for starting systems. `learn_s`: seconds of mixed traffic. `neighbour`: a busy program runs beside it."""

    learn_s: float
    neighbour: bool = False
    split: bool = False
    baseline: Path | None = None
    settings: tuple[str, ...] = ()


@contextlib.contextmanager
def start_systems(
    conditions: Conditions,
    repository: Path,
    workers: int = 1,
    names: Sequence[str] = (DEFAULT, NO_PROFILER, BEFORE),
    models: Sequence[str] = (),
    settings: Sequence[str] = (),
) -> Iterator[dict[str, System]]:
    """Start and warm the systems `names`, `BEFORE` only if there is a baseline. `models`: targets of the warm-up.

    Yields the systems by name. Raises `RuntimeError` if one does not become ready.
    """
    launch = Launch(repository, workers, conditions.split, settings=(*conditions.settings, *settings))
    launches = {
        DEFAULT: launch,
        NO_PROFILER: launch._replace(profiler=False),
        BEFORE: launch._replace(checkout=conditions.baseline),
    }
    with contextlib.ExitStack() as stack:
        systems: dict[str, System] = {}
        for name in names:
            if name == BEFORE and not conditions.baseline:
                continue
            print(f"  {name}: starting with {workers} workers", file=sys.stderr)
            server = stack.enter_context(start_horologe(launches[name]))
            seconds = conditions.learn_s * (UNLEARNED_PART if name == NO_PROFILER else 1)
            with busy_neighbour(conditions.neighbour):
                warm_up(name, server, seconds, models)
            systems[name] = System(name, server)
        yield systems


def in_turn(systems: dict[str, System], turn: int) -> Iterator[System]:
    """Yield the systems in an order that starts with another one in each round, each once no profiler has samples."""
    ordered = list(systems.values())
    first = turn % len(ordered)
    for system in ordered[first:] + ordered[:first]:
        for each in ordered:
            wait_until_settled(each.server)
        yield system
