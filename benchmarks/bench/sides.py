"""The sides of a comparison by name, each a server that is started, asked and stopped.

`horologe:sdk`, `horologe:http` (binary) and `horologe:json`, with `:split` behind for a process per service;
`mosec:binary`, `litserve:json`, ...: a peer and its dialect, with `:4` behind for a batch limit other than
the scenario's.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from bench import peer
from bench.horologe import start_horologe
from bench.loops import Run
from bench.target import target

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.workload import Scenario

FACES = {"sdk": "", "http": "oip-binary-slo", "json": "oip-json-slo"}
"""Of ours -> the dialect; through the SDK there is none."""


@contextlib.contextmanager
def side(name: str, scenario: Scenario) -> Iterator[Run]:
    """A started server of this name. Raises `ValueError` for a name that is none, `RuntimeError` if it won't start."""
    kind, *options = name.split(":")
    opened = _ours(options, scenario) if kind == "horologe" else _peer(kind, options, scenario)
    with opened as run:
        yield run


@contextlib.contextmanager
def _ours(options: list[str], scenario: Scenario) -> Iterator[Run]:
    dialect = FACES[next((option for option in options if option in FACES), "sdk")]
    if unknown := set(options) - {*FACES, "split"}:
        raise ValueError(f"horologe: got {sorted(unknown)}, wanted {', '.join(FACES)} or split")
    with start_horologe(scenario.repository, scenario.workers, "split" in options, model=scenario.model) as house:
        url = house.http if dialect else house.sdk
        yield Run(scenario, lambda inputs: target(url, dialect, scenario, inputs))


@contextlib.contextmanager
def _peer(kind: str, options: list[str], scenario: Scenario) -> Iterator[Run]:
    if kind not in peer.KNOWN:
        raise ValueError(f"side: got {kind!r}, wanted horologe or one of {', '.join(peer.KNOWN)}")
    if unknown := {option for option in options if option not in ("binary", "json") and not option.isdigit()}:
        raise ValueError(f"{kind}: got {sorted(unknown)}, wanted binary, json or a batch limit")
    max_batch = next((int(option) for option in options if option.isdigit()), 0)
    started = peer.start(peer.KNOWN[kind], scenario, "binary" in options, max_batch)
    with started.server:
        peer.wait_ready(peer.KNOWN[kind], started, scenario)
        yield Run(scenario, lambda inputs: target(started.url, started.dialect, scenario, inputs))
