"""Parts of the requests that are served: of all, and of each model for fairness (`controller.fairness`)."""

from __future__ import annotations

MEMORY = 1 - 1 / 256
"""Decay with each request. Not tuned."""


class ServedPart:
    """Part of the recent requests with deadlines that batches were formed of; the others were lost for lack of time."""

    def __init__(self) -> None:
        self.value = 1.0

    def record_loss(self) -> None:
        """Count a request that devices had no time for."""
        self.value *= MEMORY

    def record_batch(self, requests: int) -> None:
        """Count the requests of a batch."""
        self.value = 1.0 - (1.0 - self.value) * MEMORY**requests


class ServedParts:
    """Part of each model's recent requests that batches were formed of, for proportional fairness."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[float, float]] = {}
        """Model -> (requests that arrived, requests in batches), decayed with each arrival."""

    def record_arrivals(self, model: str, requests: int) -> None:
        arrived, served = self._counts.get(model, (0.0, 0.0))
        kept = MEMORY**requests
        self._counts[model] = kept * arrived + requests, kept * served

    def record_batch(self, model: str, requests: int) -> None:
        arrived, served = self._counts[model]
        self._counts[model] = arrived, served + requests

    def weight(self, model: str) -> float:
        """Return what a request of the model counts: 1 / the part that is served.

        The sum over models of rate * ln(part) is largest where each batch is chosen by its weight for its time (Kelly,
        Maulloo and Tan, section 2). It goes to minus infinity as any part goes to 0.
        """
        arrived, served = self._counts.get(model, (0.0, 0.0))
        return (arrived + 1) / (served + 1)
