"""Registry of the state stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.service.settings import SettingsError
from horologe_selector.stores.memory import MemoryStore
from horologe_selector.stores.redis import open_redis
from horologe_selector.stores.sqlite import open_sqlite

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_selector.settings import SelectorSettings
    from horologe_selector.store import StateStore

STORES: dict[str, Callable[[SelectorSettings], StateStore]] = {
    "memory": lambda settings: MemoryStore(),
    "sqlite": open_sqlite,
    "redis": open_redis,
}


def open_store(settings: SelectorSettings) -> StateStore:
    """Open the store named by `settings.store`. Raises `SettingsError` if it is unknown or cannot be opened.

    A Redis that does not respond is no error: the store is unavailable until it does.
    """
    if (factory := STORES.get(settings.store)) is None:
        raise SettingsError(f"setting selector.store: got {settings.store!r}, wanted one of {', '.join(STORES)}")
    return factory(settings)
