"""A selector with all it needs from the process around it: chance, the operator's losses, the thread of its store."""

from __future__ import annotations

import importlib
import random
from typing import TYPE_CHECKING, Any

from horologe_common.service.settings import SettingsError
from horologe_selector.core.applications.losses import LOSSES
from horologe_selector.core.selector import Selector
from horologe_selector.stores import open_store
from horologe_selector.stores.store_writer import Keeper

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.transport.links import Links
    from horologe_common.transport.reactor import Reactor
    from horologe_selector.core.applications.losses import Loss
    from horologe_selector.settings import SelectorSettings


class Hosting:
    """Raises `SettingsError` where the store cannot be opened or a loss is not there. `close` saves what waits."""

    def __init__(self, links: Links, settings: SelectorSettings) -> None:
        losses = losses_of(settings.losses)
        self._store = open_store(settings)
        address = links.address("selector", settings.name)
        self.core = Selector(address, settings, random.Random(), losses, self._store.shared)
        self._keeper: Keeper | None = None

    def attach(self, reactor: Reactor) -> None:
        """Start the thread, between the core and its store."""
        core, settings = self.core, self.core.settings

        def post(reply: Any) -> None:
            reactor.post_threadsafe(core.store, core.address, reply)

        self._keeper = Keeper(self._store, post, settings.store_queue, settings.store_pause_ns)
        self._keeper.start()
        reactor.attach(core.store, self._keeper.deliver)

    def close(self) -> None:
        if self._keeper is not None:
            self._keeper.stop()


def losses_of(named: Sequence[str]) -> dict[str, Loss]:
    """Functions by the names that applications call them, from `NAME=MODULE:FUNCTION`. Raises `SettingsError`."""
    found: dict[str, Loss] = {}
    for text in named:
        name, _, place = text.partition("=")
        module, _, function = place.partition(":")
        if name in LOSSES:
            raise SettingsError(f"setting selector.losses: got {text!r}, wanted another name: {name} is built in")
        try:
            found[name] = getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError, ValueError) as error:
            raise SettingsError(
                f"setting selector.losses: got {text!r}, wanted NAME=MODULE:FUNCTION: {error}"
            ) from error
    return found
