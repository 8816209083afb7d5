"""Construction of a selector in its process: random source, the operator's losses, state store and its thread."""

from __future__ import annotations

import importlib
import random
from functools import partial
from typing import TYPE_CHECKING

from horologe_common.service.settings import SettingsError
from horologe_common.service.state_file import check_writable
from horologe_selector.core.applications.losses import LOSSES
from horologe_selector.core.selector import Selector
from horologe_selector.drivers.driver_processes import DriverProcesses
from horologe_selector.stores import open_store
from horologe_selector.stores.store_writer import StoreWriter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.transport.links import Links
    from horologe_common.transport.reactor import Reactor
    from horologe_selector.core.applications.losses import Loss
    from horologe_selector.settings import SelectorSettings


class HostedSelector:
    """Selector core with its open store. Raises `SettingsError` if the store cannot be opened or a loss is missing."""

    def __init__(self, links: Links, settings: SelectorSettings) -> None:
        losses = load_losses(settings.losses)
        if settings.store == "sqlite":
            check_writable(settings.state, "selector.state")
        self._store = open_store(settings)
        address = links.address("selector", settings.name)
        self.core = Selector(address, settings, random.Random(), losses, self._store.shared)
        self._writer: StoreWriter | None = None
        self._drivers = DriverProcesses(address, settings, links.settings.max_frame_bytes)

    async def run_drivers(self, reactor: Reactor) -> None:
        """Run the drivers of the pipelines until cancelled. Return at once if no folder is set."""
        if self.core.settings.pipelines:
            await self._drivers.run(reactor)

    def attach(self, reactor: Reactor) -> None:
        """Start the store writer and connect it to the core."""
        core = self.core
        self._writer = StoreWriter(self._store, partial(reactor.post_threadsafe, core.store, core.address))
        self._writer.start()
        reactor.attach(core.store, self._writer.deliver)

    def close(self) -> None:
        """Write what is queued, then close the store."""
        if self._writer is not None:
            self._writer.stop()


def load_losses(entries: Sequence[str]) -> dict[str, Loss]:
    """Import loss functions from entries `NAME=MODULE:FUNCTION`. Return them by name. Raises `SettingsError`."""
    losses: dict[str, Loss] = {}
    for entry in entries:
        name, _, path = entry.partition("=")
        module, _, function = path.partition(":")
        if name in LOSSES:
            raise SettingsError(f"setting selector.losses: got {entry!r}, wanted another name: {name} is built in")
        try:
            losses[name] = getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError, ValueError) as error:
            raise SettingsError(
                f"setting selector.losses: got {entry!r}, wanted NAME=MODULE:FUNCTION: {error}"
            ) from error
    return losses
