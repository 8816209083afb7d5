"""Parts of the selector core that applications and pipelines both use."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_common.core.instruments import Stats
    from horologe_common.core.protocol import Out
    from horologe_common.core.return_latency import ReturnLatency
    from horologe_selector.core.announced_models import AnnouncedModels
    from horologe_selector.core.predictions.inflight import InflightPredictions
    from horologe_selector.settings import SelectorSettings


class SharedParts(NamedTuple):
    """The identity of a selector, its predictions, and its way to send messages."""

    address: str
    settings: SelectorSettings
    models: AnnouncedModels
    inflight: InflightPredictions
    return_latency: ReturnLatency
    stats: Stats
    post: Callable[[Out], None]
    """Sends a message to a peer."""
