"""The cluster of a lean run, as scenes write it."""

from __future__ import annotations

import msgspec

from horologe_common.clock import s, us
from horologe_controller.settings import ControllerSettings
from horologe_sim.engine.noise import NOISES, Noise
from horologe_sim.scenario.clockwork_models import PAGES


class FastClusterSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The cluster of a lean run."""

    devices: int = 1
    pages: int = PAGES
    noise: Noise = NOISES["clockwork"]
    settle_ns: int = s(3)
    """Before the load: free pages are filled."""
    client_ns: int = us(100)
    """One way between a client and the edge, and from a worker to the client."""
    worker_ns: int = us(60)
    """One way between the controller and a worker."""
    grace_ns: int = 0
    """Until a client is told, after its SLO, that it has been missed; outputs that come meanwhile are still sent."""
    turn_ns: int = us(50)
    """What a turn of the controller takes: what comes meanwhile is handled in the next."""
    controller: ControllerSettings = ControllerSettings()
