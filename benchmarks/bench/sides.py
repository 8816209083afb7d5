"""Sides of a comparison by name.

`horologe:sdk`, `horologe:http` (binary) and `horologe:json`; a suffix `:split` starts a process per service.
`mosec:binary`, `litserve:json`, ...: a peer and its dialect; a suffix such as `:4` replaces the scenario's batch limit.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from bench import peers
from bench.horologe_server import start_horologe
from bench.runs import ScenarioRuns
from bench.targets import make_target

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.workload import Scenario

DIALECTS_OF_HOROLOGE = {"sdk": "", "http": "oip-binary-slo", "json": "oip-json-slo"}
"""Interface of Horologe -> dialect. The SDK has none."""


@contextlib.contextmanager
def start_side(name: str, scenario: Scenario) -> Iterator[ScenarioRuns]:
    """Start the server of this name. Raises `ValueError` for an unknown name, `RuntimeError` if it does not start."""
    kind, *options = name.split(":")
    started = _start_horologe(options, scenario) if kind == "horologe" else _start_peer(kind, options, scenario)
    with started as runs:
        yield runs


@contextlib.contextmanager
def _start_horologe(options: list[str], scenario: Scenario) -> Iterator[ScenarioRuns]:
    dialect = DIALECTS_OF_HOROLOGE[next((option for option in options if option in DIALECTS_OF_HOROLOGE), "sdk")]
    if unknown := set(options) - {*DIALECTS_OF_HOROLOGE, "split"}:
        raise ValueError(f"horologe: got {sorted(unknown)}, wanted {', '.join(DIALECTS_OF_HOROLOGE)} or split")
    with start_horologe(scenario.repository, scenario.workers, "split" in options, model=scenario.model) as server:
        url = server.http if dialect else server.sdk
        yield ScenarioRuns(scenario, lambda inputs: make_target(url, dialect, scenario, inputs))


@contextlib.contextmanager
def _start_peer(kind: str, options: list[str], scenario: Scenario) -> Iterator[ScenarioRuns]:
    if kind not in peers.PEER_SERVERS:
        raise ValueError(f"side: got {kind!r}, wanted horologe or one of {', '.join(peers.PEER_SERVERS)}")
    if unknown := {option for option in options if option not in ("binary", "json") and not option.isdigit()}:
        raise ValueError(f"{kind}: got {sorted(unknown)}, wanted binary, json or a batch limit")
    max_batch = next((int(option) for option in options if option.isdigit()), 0)
    started = peers.prepare_peer(peers.PEER_SERVERS[kind], scenario, "binary" in options, max_batch)
    with started.server:
        peers.wait_ready(peers.PEER_SERVERS[kind], started, scenario)
        yield ScenarioRuns(scenario, lambda inputs: make_target(started.url, started.dialect, scenario, inputs))
