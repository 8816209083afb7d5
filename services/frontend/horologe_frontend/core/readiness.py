"""Readiness of a frontend: after a start, it waits until the models that should be served are settled."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horologe_frontend.core.model_versions import ModelVersions


class Readiness:
    """Whether the models have been settled once: each READY or UNAVAILABLE, and no worker missing.

    Later loads and restarts of workers do not count: the other models are served meanwhile, and requests for a model
    that is loading are answered with the reason. `wait_ns`: longest wait after the first announcement of models.
    """

    def __init__(self, catalogue: ModelVersions, wait_ns: int) -> None:
        self.is_settled = False
        self._catalogue = catalogue
        self._wait_ns = wait_ns
        self.timer_ns: int | None = None
        """Time at which the wait ends at the latest; None if nothing is waited for."""

    def update(self, now_ns: int) -> None:
        """Update `is_settled` by the models that were announced last."""
        if self.is_settled or not self._catalogue.is_announced:
            return
        if self.timer_ns is None:
            self.timer_ns = now_ns + self._wait_ns
        if self._catalogue.is_settled or now_ns >= self.timer_ns:
            self.is_settled, self.timer_ns = True, None
