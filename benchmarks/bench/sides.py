"""Sides of a comparison by name.

`horologe:sdk`, `horologe:ipc`, `horologe:binary` and `horologe:json`; a suffix `:split` starts a process per service,
`:no-profiler` starts no profiler. `mosec:binary`, `litserve:json`, ...: a peer and its dialect; a suffix such as `:4`
replaces the scenario's batch limit.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from bench import peers
from bench.runs import ScenarioRuns
from bench.systems import DEFAULT, DIALECTS_OF_INTERFACES, NO_PROFILER, start_systems
from bench.targets import make_target
from bench.workload import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.systems import Conditions
    from bench.workload import Scenario


@contextlib.contextmanager
def start_side(name: str, scenario: Scenario, conditions: Conditions) -> Iterator[ScenarioRuns]:
    """Start the server of this name. Raises `ValueError` for an unknown name, `RuntimeError` if it does not start."""
    kind, *options = name.split(":")
    started = (
        _start_horologe(options, scenario, conditions) if kind == "horologe" else start_peer(kind, options, scenario)
    )
    with started as runs:
        yield runs


@contextlib.contextmanager
def _start_horologe(options: list[str], scenario: Scenario, conditions: Conditions) -> Iterator[ScenarioRuns]:
    if unknown := set(options) - {*DIALECTS_OF_INTERFACES, "split", NO_PROFILER}:
        wanted = ", ".join((*DIALECTS_OF_INTERFACES, "split", NO_PROFILER))
        raise ValueError(f"horologe: got {sorted(unknown)}, wanted {wanted}")
    interface = next((option for option in options if option in DIALECTS_OF_INTERFACES), "sdk")
    name = NO_PROFILER if NO_PROFILER in options else DEFAULT
    changed, repository = conditions._replace(split="split" in options), ROOT / scenario.repository
    with start_systems(changed, repository, scenario.workers, (name,)) as systems:
        yield systems[name].runs(scenario, interface)


@contextlib.contextmanager
def start_peer(kind: str, options: list[str], scenario: Scenario) -> Iterator[ScenarioRuns]:
    """Start a peer. Raises `ValueError` for an unknown name or option, `RuntimeError` if it does not start."""
    if kind not in peers.PEER_SERVERS:
        raise ValueError(f"side: got {kind!r}, wanted horologe or one of {', '.join(peers.PEER_SERVERS)}")
    if unknown := {option for option in options if option not in ("binary", "json") and not option.isdigit()}:
        raise ValueError(f"{kind}: got {sorted(unknown)}, wanted binary, json or a batch limit")
    max_batch = next((int(option) for option in options if option.isdigit()), 0)
    started = peers.prepare_peer(peers.PEER_SERVERS[kind], scenario, "binary" in options, max_batch)
    with started.server:
        peers.wait_ready(peers.PEER_SERVERS[kind], started, scenario)
        yield ScenarioRuns(scenario, lambda inputs: make_target(started.url, started.dialect, scenario, inputs))
