"""Attacks on a running Horologe, each beside a client that behaves well. Started by `benchmarks/attacks.py`."""

from bench_attacks import client_door, controls, http_door
from bench_attacks.attack import Attack

ATTACKS: dict[str, Attack] = {attack.name: attack for attack in (*client_door.ATTACKS, *http_door.ATTACKS)}
"""Every attack by name. A module per door exports its `ATTACKS`."""
CONTROLS: dict[str, Attack] = {control.name: control for control in controls.CONTROLS}
"""Run only if asked for by name."""
