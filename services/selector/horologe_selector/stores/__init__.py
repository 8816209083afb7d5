"""The state stores by name, and how a selector gets its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.service.settings import SettingsError
from horologe_selector.stores.memory import Memory
from horologe_selector.stores.redis import open_redis
from horologe_selector.stores.sqlite import open_sqlite

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_selector.settings import SelectorSettings
    from horologe_selector.store import StateStore

STORES: dict[str, Callable[[SelectorSettings], StateStore]] = {
    "memory": lambda settings: Memory(),
    "sqlite": open_sqlite,
    "redis": open_redis,
}


def open_store(settings: SelectorSettings) -> StateStore:
    """The store that `settings.store` names. Raises `SettingsError` where there is none, or it cannot be opened.

    A Redis that does not answer is no error: it is away.
    """
    if (make := STORES.get(settings.store)) is None:
        raise SettingsError(f"setting selector.store: got {settings.store!r}, wanted one of {', '.join(STORES)}")
    return make(settings)
