"""Versions that lost their requests: they are unloaded when no request and no stream for them is open."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from horologe_common.wire import ModelState
    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.model_loads import PendingLoads
    from horologe_controller.core.requests.request import Request
    from horologe_controller.core.version_switches import VersionSwitches


class ReleasedVersions:
    """Keys of versions to unload. Frontends may have requests for a version that a load still drains."""

    def __init__(self, loads: PendingLoads, switches: VersionSwitches) -> None:
        self._loads = loads
        self._switches = switches
        self.keys: dict[str, bool] = {}

    def add_unused(self, keys: Iterable[str], states: Mapping[str, ModelState]) -> None:
        """Add the versions that get no requests and are not drained any more."""
        for key in keys:
            if key in states and not states[key].traffic and not self._loads.is_draining(key):
                self.keys[key] = True

    def pop_unused(
        self, now_ns: int, requests: Iterable[Request], states: Mapping[str, ModelState], cluster: Cluster
    ) -> list[str]:
        """Return the versions to unload now: those that no switch, stream, or one of all open `requests` needs."""
        needed = {request.model: True for request in requests}
        shares = list(cluster.shares())
        needed |= {key: True for key in self.keys if any(share.has_streams(now_ns, key) for share in shares)}
        needed |= {switch.key: True for switch in self._switches.pending.values()}
        popped = [key for key in self.keys if key not in needed]
        for key in popped:
            del self.keys[key]
        return [key for key in popped if key in states and not states[key].traffic]
