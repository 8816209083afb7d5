"""The network between processes: a delay for each packet. Packets of a link arrive in the order sent."""

from __future__ import annotations

import msgspec
import numpy as np

from horologe_common.clock import us
from horologe_sim.engine.number_types import Duration

DRAWS = 4096


class NetworkSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[network]` of a scenario. Cores fused in one process need no network."""

    delay_ns: Duration = us(60)
    """One-way delay between two processes: a packet over ipc, including the wake-up of the reader."""
    jitter_ns: Duration = us(20)
    """Mean of an exponentially distributed addition to the delay."""
    notice_ns: Duration = us(500)
    """Time until the peers detect that a process has died."""
    turn_ns: Duration = us(50)
    """Duration of a turn of a process. A message that arrives meanwhile is handled in the next turn. Longer turns are
    faster to simulate."""
    message_ns: Duration = 0
    """Time by which each message that a core handles makes the turn of its process longer; 0 for clients."""
    split: bool = False
    """Run frontend, selector and controller in a process each instead of in one."""


class Network:
    """Delays by link, and order: a packet never overtakes an earlier one of its link."""

    def __init__(self, settings: NetworkSettings, seed: int) -> None:
        self.settings = settings
        self.delays_ns: dict[tuple[str, str], int] = {}
        """Delays of single links, by names of processes (from, to)."""
        self._rng = np.random.default_rng([seed, 1])
        self._draws: list[int] = []
        self._last_ns: dict[tuple[str, str], int] = {}

    def arrival_ns(self, now_ns: int, source: str, target: str) -> int:
        """Return when a packet sent now from process `source` arrives at process `target`."""
        link = (source, target)
        at_ns = now_ns + self.delays_ns.get(link, self.settings.delay_ns) + self._jitter_ns()
        at_ns = self._last_ns[link] = max(at_ns, self._last_ns.get(link, 0))
        return at_ns

    def _jitter_ns(self) -> int:
        if not self.settings.jitter_ns:
            return 0
        if not self._draws:
            self._draws = self._rng.exponential(self.settings.jitter_ns, DRAWS).astype(int).tolist()
        return self._draws.pop()
